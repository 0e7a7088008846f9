"""Records of an undisturbed run of a spec, from the filter itself."""

import tempfile
from collections.abc import Callable, Mapping
from typing import Any

from mptcore.specs import stored_spec
from tests.support.invariants import Record
from tests.support.ppca_spec import ppca_spec
from tests.support.stub import all_records
from tests.support.warm import warm_parent
from worker.children import Child, Stdio
from worker.runner import Runner


def undisturbed_records(
    spec: Mapping[str, Any], start: Callable[[Stdio], Child] | None = None
) -> list[Record]:
    """All numbered records of the filter, as the service would have it run the spec, in a process
    that `start` starts; default: a fork of the warm parent."""
    resolved = stored_spec(spec).model_dump(mode="json")
    with tempfile.TemporaryDirectory() as folder:
        runner = Runner(start or warm_parent().fork)
        runner.start({"spec": resolved, "work_dir": folder})
        records: list[Record] = [
            record for record in all_records(runner) if record["seq"] is not None
        ]
        assert runner.kill() == 0, runner.stderr
    return records


TRAINING = ppca_spec(
    model={"family": "ppca", "latent_dim": 2, "noise_precision": 5.0, "init": "random"},
    data__n=200,
    data__dim=12,
    train={
        "objective": "mpt",
        "epochs": 2000,
        "evaluate_every": 10,
        "masks": {"schedule": "all", "per_size": 20},
        "curve_at": [0, 1200, 2000],
    },
    seeds=[4, 44],
)
CONVERGENCE = ppca_spec(
    data__dim=40, evaluate__masks__per_size=1500, evaluate__convergence=True, seeds=[1, 2]
)
CURVE = ppca_spec(data__dim=60, evaluate__masks__per_size=3000, seeds=[1, 2])

ENDLESS = ppca_spec(
    data__dim=60,
    evaluate__masks__per_size=60_000,
    compute={"device": "cpu", "threads": 1, "max_runtime_s": 1},
)
"""It takes several times its limit. Its undisturbed run has no limit and is computed to the end."""

KINDS = {"training": TRAINING, "convergence": CONVERGENCE, "curve": CURVE}
"""One spec of each kind of run, of a second or a few."""
