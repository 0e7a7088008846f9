"""Memory estimates against measured peaks: `python -m benchmarks.memory`.

Each spec is run by the real slot on this machine's CPU; its peak is the resident size of its
process. (On a GPU a run says what torch's allocator reserved; no GPU is used here.) The least
estimate that is safe is above the peak; one that is many times above it keeps slots empty.
"""

import sys
from collections.abc import Iterator
from contextlib import closing
from typing import Any

from sqlalchemy import select

from benchmarks.modes import sqlite
from mptcore.specs import stored_spec
from service.db.engine import Database
from service.experiments.models import Attempt
from service.experiments.schemas import Submission
from service.queue.memory import MemoryModel
from service.settings import Settings
from tests.support import stored
from tests.support.ppca_spec import ppca_spec
from worker.slot import Slot

MIB = 2**20
BERNOULLI = {"distribution": "bernoulli"}
ONE_MASK = {"masks": {"schedule": "fixed", "size": 1, "per_size": 4}}


def specs() -> Iterator[tuple[str, dict[str, Any]]]:
    """Small and large specs of each family that needs no files."""
    for n, dim in ((1000, 20), (200_000, 100), (200_000, 200), (3000, 2000)):
        yield f"ppca {n} × {dim}", ppca_spec(data__n=n, data__dim=dim, evaluate=ONE_MASK)
    train = {"objective": "mpt", "epochs": 2, "masks": {"schedule": "fixed", "size": 5}}
    yield (
        "ppca, trained, 100000 × 100",
        ppca_spec(data__n=100_000, data__dim=100, model__init="random", train=train,
                  evaluate=ONE_MASK),
    )  # fmt: skip
    digits = {"source": "digits", "binarize": "threshold"}
    for nodes in (20, 50, 100):
        model = {"family": "linear_vae", "latent_dim": 2, "likelihood": BERNOULLI,
                 "conditionals": {"method": "gauss_hermite", "nodes": nodes}}  # fmt: skip
        yield f"linear_vae, {nodes}² nodes", _latent(model, digits)
    for width in (64, 256):
        model = {"family": "vae", "latent_dim": 2, "likelihood": BERNOULLI,
                 "network": {"layers": "dense", "widths": [width]}}  # fmt: skip
        yield f"vae, dense {width}", _latent(model, digits)


def _latent(model: dict[str, Any], data: dict[str, Any]) -> dict[str, Any]:
    evaluate = {"masks": {"schedule": "fixed", "size": 5, "per_size": 2}}
    compute = {"device": "cpu", "threads": 1}
    return {"model": model, "data": data, "evaluate": evaluate, "compute": compute}


def measure(settings: Settings, value: dict[str, Any]) -> tuple[int, int | None]:
    """The estimate and the peak, in bytes."""
    spec = stored_spec(value)
    slot = Slot(Database(settings.url), settings, "bench")
    with closing(Database(settings.url)) as database:
        with database.transaction() as session:
            memory = MemoryModel(session).expected(spec)
            submission = Submission.model_validate({"spec": value})
            stored.submit(session, 1, submission, memory=memory)
        slot.be_ready(lambda: False)
        claim = slot.claim()
        assert claim is not None
        slot.run(claim, lambda: False)
        slot.close()
        with database.snapshot() as session:
            line = session.scalars(
                select(Attempt).where(Attempt.experiment_id == claim.experiment_id)
            ).one()
    return memory.expected, line.peak_bytes


def main() -> int:
    """The table; 1 if a run took more than it was expected to."""
    print(f"{'':32}{'estimate':>12}{'peak':>12}{'ratio':>8}")
    exceeded = 0
    for name, value in specs():
        with sqlite() as settings:
            estimate, peak = measure(settings, value)
        if peak is None:
            print(f"{name:32}{estimate / MIB:8.0f} MiB{'too short to see':>20}", flush=True)
            continue
        exceeded += peak > estimate
        ratio = estimate / peak
        print(f"{name:32}{estimate / MIB:8.0f} MiB{peak / MIB:8.0f} MiB{ratio:8.2f}", flush=True)
    print(f"{exceeded} runs took more than they were expected to")
    return 1 if exceeded else 0


if __name__ == "__main__":
    sys.exit(main())
