"""One warm parent for all slots and undisturbed runs of a test process."""

from functools import cache

from tests.support.forks import SharedWarmParent
from worker.children import WarmParent


@cache
def warm_parent(*, transformers: bool = False) -> WarmParent:
    """Return the warm parent of this process."""
    return SharedWarmParent(transformers=transformers)
