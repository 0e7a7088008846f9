"""One warm parent for all slots and undisturbed runs of a test process."""

import os
from functools import cache

from tests.support.forks import SharedWarmParent
from worker.children import WarmParent


class FreshWarmParent(WarmParent):
    """It ends with the process that made it."""

    def close(self) -> None:
        """Others use it still."""


@cache
def warm_parent(*, transformers: bool = False) -> WarmParent:
    """Return the warm parent of this process. Its runners are mutants where this process is one,
    for which a fork would come too late."""
    if "MUTANT_UNDER_TEST" in os.environ:
        return FreshWarmParent(transformers=transformers)
    return SharedWarmParent(transformers=transformers)
