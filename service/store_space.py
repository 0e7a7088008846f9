"""Free space of the store's disk."""

import shutil

from service.settings import Settings

GIB = 2**30


def shortage(settings: Settings) -> str | None:
    """Return why no run may start, if the store's disk has less free than its reserve: a run needs
    space for checkpoints and results."""
    try:
        free = shutil.disk_usage(settings.store).free
    except OSError:  # the store is missing, which is reported where it is used
        return None
    if free >= settings.reserve_bytes:
        return None
    reserve = f"less than its reserve of {settings.reserve_bytes / GIB:.3g} GiB (MPT_RESERVE_BYTES)"
    return f"the store's disk has {free / GIB:.3g} GiB free, {reserve}: no run starts"
