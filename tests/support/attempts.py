"""Attempts at experiments without a worker: submitted and claimed in the store."""

from typing import Any

from service.db.engine import Database
from service.experiments.models import Artifact
from service.experiments.schemas import Submission
from service.queue.lease import Claim
from tests.support import stored
from tests.support.ppca_spec import ppca_spec
from tests.support.starting import start_next


def submitted(database: Database, spec: dict[str, Any] | None = None, **beside: Any) -> str:
    """A new experiment of the first user: a small one, unless a spec is given."""
    submission = Submission.model_validate({"spec": spec or ppca_spec(), **beside})
    with database.transaction() as session:
        return stored.submit(session, 1, submission).id


def claim_next(database: Database, lease_s: float = 60.0, worker: str = "w") -> Claim:
    """An attempt at the next experiment of the queue."""
    with database.transaction() as session:
        claim = start_next(session, worker, lease_s=lease_s)
    assert claim is not None
    return claim


def claimed(database: Database, spec: dict[str, Any] | None = None, lease_s: float = 60.0) -> Claim:
    """An attempt at a new experiment, the only one in the queue."""
    submitted(database, spec)
    return claim_next(database, lease_s)


def keep_weights(database: Database, experiment_id: str) -> None:
    """Store the record of weights that an experiment has kept."""
    columns = {"file": "weights.safetensors", "attempt": 1, "seq": 1, "media_type": "a/b"}
    with database.transaction() as session:
        session.add(Artifact(experiment_id=experiment_id, sha256="0" * 64, **columns))
