"""What a spec gives when nothing disturbs it, from the filter itself."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from typing import Any

from mptcore.specs import stored_spec
from tests.conftest import ppca_spec
from tests.invariants import Record


def undisturbed_records(spec: Mapping[str, Any]) -> list[Record]:
    """All records of `python -m mptcore`, as the service would have it run the spec."""
    resolved = stored_spec(spec).model_dump_json()
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-m", "mptcore", "--work-dir", folder],
            input=resolved,
            capture_output=True,
            text=True,
            check=True,
        )
    return [json.loads(line) for line in done.stdout.splitlines()]


TRAINING = ppca_spec(
    model={"family": "ppca", "latent_dim": 2, "noise_precision": 5.0, "init": "random"},
    data__n=200,
    data__dim=12,
    train={
        "objective": "mpt",
        "epochs": 500,
        "masks": {"schedule": "all", "per_size": 1},
        "curve_at": [0, 300, 500],
    },
    seeds=[4, 44],
)
CONVERGENCE = ppca_spec(
    data__dim=40, evaluate__masks__per_size=1500, evaluate__convergence=True, seeds=[1, 2]
)
CURVE = ppca_spec(data__dim=60, evaluate__masks__per_size=3000, seeds=[1, 2])

KINDS = {"training": TRAINING, "convergence": CONVERGENCE, "curve": CURVE}
"""One spec of each kind of run, of a second or a few."""
