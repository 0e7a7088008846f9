"""Device, precision, time and memory of a run, and the limits of an experiment."""

from typing import Annotated, Literal

from pydantic import Field

from mptcore.specs.base import Spec

GPU_BATCH_BYTES = 2**29
"""Memory on a GPU for what is computed together: masks on vectors, or draws of a VAE. With this
much, kernels compute for longer than it takes to launch them."""
GPU_SHARE = 0.3
"""Maximum share of a GPU's total memory for what a language model computes together. It does not
depend on the free memory, so that a resumed run cuts the same parts."""


DeviceName = Literal["auto", "cpu", "cuda"]


class Machine(Spec):
    """Device, threads, memory and time limit of a run."""

    device: DeviceName = "auto"
    """Device of the run. `auto` uses an idle GPU with the memory for it, or an idle CPU if there is
    none. For PPCA and factor analysis `auto` is the CPU."""
    threads: Annotated[int, Field(ge=1, le=256)] = 2
    """CPU threads. On a CPU they determine the result to the last bit. A run gets no more threads
    than its worker has processors (or 2, if that is more); its log and environment show how
    many."""
    max_runtime_s: Annotated[int, Field(ge=1, le=30 * 24 * 3600)] = 3600
    """Time limit of one attempt, in seconds."""
    memory_mib: Annotated[int, Field(ge=1, le=2**20)] | None = None
    """Memory in MiB for the masks that are scored together. Default: about the size of a
    processor's caches; on a GPU 512 MiB; for language models 6.5 GiB of the GPU's memory, in
    training 23 GiB, but at most 30 % of it."""
    determinism: Literal["exact", "fast"] = "exact"
    """For GPUs. `exact` gives the same bits each time on the same device, with float32 in full;
    `fast` rounds the factors of products and convolutions to TF32 (10 bits) and uses the fastest
    kernels."""

    @property
    def memory_bytes(self) -> int | None:
        return None if self.memory_mib is None else self.memory_mib * 2**20


class Compute(Machine):
    """Device, threads, memory, time limit and precision of a run."""

    precision: Literal["float64", "float32"] = "float64"
    """Floating-point type of the computation."""


class Limits(Spec):
    """Limits of the size of an experiment."""

    elements: int = 200_000_000
    """Maximum number of values in the data, N · D."""
    mask_work: int = 3 * 10**16
    """Multiplications for the masks of one seed, masks · D² · K: 30 days on two cores."""
    train_work: int = 10**16
    """Multiplications for the masks of all training steps and seeds: 40 days on two cores."""
    latent_work: int = 10**16
    """Maximum work of VAEs: N · D · (nodes or draws) for each mask, training included."""
    points: int = 5_000_000
    """Maximum number of points of all series of a run. A point takes 37 bytes."""
    memory_bytes: int = 16 * 2**30
    """Maximum memory of a run, in bytes."""
