"""Where a run is computed, and how large it may be."""

from typing import Annotated, Literal

from pydantic import Field

from mptcore.specs.base import Spec

GPU_BATCH_BYTES = 2**29
"""For the masks on vectors that are scored together on a GPU: its kernels then compute for longer
than it takes to launch them, and not for long."""


class Machine(Spec):
    """`threads` fixes the result to the last bit on a CPU. A run gets no more of them than its
    worker has processors (or 2, if that is more); its log and environment say how many.
    `max_runtime_s` is the time limit of one attempt, in seconds; `memory_mib` the memory for the
    masks that are scored together, by default about what a processor's caches hold, and on a GPU
    512 MiB, for language models three tenths of what it has. `determinism`, for GPUs: exact gives
    the same bits each time on the same device, with float32 in full; fast lets products and
    convolutions round their factors to TF32 (10 bits), and takes the quickest kernels."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    threads: Annotated[int, Field(ge=1, le=256)] = 2
    max_runtime_s: Annotated[int, Field(ge=1, le=30 * 24 * 3600)] = 3600
    memory_mib: Annotated[int, Field(ge=1, le=2**20)] | None = None
    determinism: Literal["exact", "fast"] = "exact"

    @property
    def memory_bytes(self) -> int | None:
        return None if self.memory_mib is None else self.memory_mib * 2**20


class Compute(Machine):
    """Where and how precisely it is computed."""

    precision: Literal["float64", "float32"] = "float64"


class Limits(Spec):
    """The largest experiment that is accepted."""

    elements: int = 200_000_000
    """Numbers in the data, N · D."""
    mask_work: int = 3 * 10**16
    """Multiplications of the masks that one seed scores, masks · D² · K: 30 days of two cores."""
    train_work: int = 10**16
    """The same for the masks of all training steps, over all seeds: 40 days of two cores."""
    latent_work: int = 10**16
    """For VAEs: N · D · (nodes or draws) for each mask, of training too."""
    points: int = 5_000_000
    """Points of all series that a run writes: 37 bytes each."""
    memory_bytes: int = 16 * 2**30
    """What a run may take."""
