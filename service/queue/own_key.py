"""Cache key of an experiment that this worker claims."""

from sqlalchemy import ColumnElement, case

from mptcore.protocol.code import core_digest
from service.experiments.models import Experiment


def own_key_only() -> ColumnElement[str | None]:
    """Return the key of an experiment that is claimed here. It is null if this worker's core
    differs from that of the service that made the key."""
    return case(
        (Experiment.cache_key.startswith(core_digest(), autoescape=True), Experiment.cache_key),
        else_=None,
    )
