"""One warm parent for all slots and undisturbed runs of a test process."""

from functools import cache

from worker.children import WarmParent


class SharedWarmParent(WarmParent):
    """It ends with the process that made it."""

    def close(self) -> None:
        """Others use it still."""


@cache
def warm_parent(*, transformers: bool = False) -> SharedWarmParent:
    return SharedWarmParent(transformers=transformers)
