"""An experiment whose run gives way ten times equals an undisturbed one, for each family."""

import threading
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, update

from service.db.engine import Database
from service.experiments.models import Attempt, Experiment
from service.queue import states
from service.settings import Settings
from tests.support import tiny_lm
from tests.support.attempts import submitted
from tests.support.invariants import check
from tests.support.ppca_spec import ppca_spec
from tests.support.starting import run_next
from tests.support.stored import row
from tests.support.undisturbed import undisturbed_records
from tests.support.vae_specs import deep_vae
from tests.worker.test_interrupted import wait_for_progress
from worker.children import Spawned
from worker.slot import Slot

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
"""Each attempt at a language model starts a process of its own, which imports transformers."""

TIMES = 10
MPT = {"objective": "mpt", "evaluate_every": 20, "masks": {"schedule": "all", "per_size": 20}}
RANDOM = {"latent_dim": 2, "init": "random", "noise_precision": 5.0}
ELBO = {"objective": "elbo"}
TINY = {"family": "masked_lm", "checkpoint": "tiny"}
TEXTS = {"source": "text", "lines": tiny_lm.lines(200)}
SPECS: dict[str, dict[str, Any]] = {
    "ppca": ppca_spec(data__dim=60, evaluate__masks__per_size=30_000, seeds=[1, 2, 3]),
    "factor_analysis": ppca_spec(
        model={
            "family": "factor_analysis",
            "latent_dim": 2,
            "init": "random",
            "noise_precision": 5.0,
        },
        data__n=200,
        data__dim=12,
        train={**MPT, "epochs": 20_000},
        seeds=[4, 44],
    ),
    "linear_vae": ppca_spec(
        model={
            "family": "linear_vae",
            "latent_dim": 2,
            "likelihood": {"distribution": "gaussian", "noise_precision": 4.0},
            "conditionals": {"method": "uniform_grid", "nodes": 10, "extent": 4.0},
        },
        train={**ELBO, "epochs": 450},
        compute={"threads": 1, "precision": "float32"},
    ),
    "vae": ppca_spec(
        model=deep_vae(latent_dim=2, width=8, draws=4, rounds=3),
        evaluate__masks={"schedule": "fixed", "size": 2, "per_size": 20},
        train={**ELBO, "epochs": 200},
        compute={"threads": 1, "precision": "float32"},
    ),
    "masked_lm": {
        "model": TINY,
        "data": TEXTS,
        "train": {
            "steps": 3000,
            "batch_size": 8,
            "masks": {"schedule": "uniform"},
            "evaluate_every": 50,
            "curve_at": [150],
        },
        "compute": {"threads": 1},
    },
}


def displace(slot: Slot, experiment_id: str, to: str, further: int) -> None:
    """One attempt that gives way `further` units of progress after it began to report."""

    def ask() -> None:
        first = wait_for_progress(slot.database, experiment_id, 0)
        wait_for_progress(slot.database, experiment_id, first + further)
        with slot.database.transaction() as session:
            of_run = update(Experiment).where(Experiment.id == experiment_id)
            session.execute(of_run.values(gives_way_to=to))

    beside = threading.Thread(target=ask)
    beside.start()
    assert run_next(slot)
    beside.join()


@pytest.mark.parametrize("family", SPECS)
def test_a_run_that_gives_way_ten_times_gives_the_same_records(
    database: Database,
    settings: Settings,
    family: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tiny_lm.checkpoint(tmp_path / "models" / "tiny")
    monkeypatch.setenv("MPT_MODELS_DIR", str(tmp_path / "models"))
    changes = {"models_dir": tmp_path / "models", "warm_parent": family != "masked_lm"}
    quick = settings.model_copy(update={"heartbeat_s": 0.1, **changes})
    experiment_id = submitted(database, SPECS[family])
    slot = Slot(database, quick, "test")
    for _ in range(TIMES):
        displace(slot, experiment_id, to="another", further=1)
    assert run_next(slot)
    with database.snapshot() as session:
        outcomes = session.scalars(select(Attempt.outcome).order_by(Attempt.attempt)).all()
    assert outcomes == ["gave_way"] * TIMES + ["succeeded"]
    assert row(database, experiment_id).lost == 0
    assert states.is_terminal(row(database, experiment_id).status)
    start = None if quick.warm_parent else Spawned  # the warm parent has no checkpoint
    counts = check(database, {experiment_id: undisturbed_records(SPECS[family], start)})
    assert counts.clean, str(counts)
