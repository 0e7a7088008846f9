"""Answers about workers."""

from datetime import datetime
from typing import Annotated, Self

from pydantic import Field, model_validator

from mptcore.specs import Problem
from mptcore.specs.base import reject
from service.experiments.models import Queue
from service.schemas import Line, Moment, RequestModel, ResponseModel

MAX_DRAIN_S = 366 * 86_400.0
"""A year. Much longer ones would end after the last date that can be shown."""


class NewDrain(RequestModel):
    host: Line
    """Name of the machine: `host` of its workers."""
    starts_in_s: Annotated[float, Field(ge=0, le=MAX_DRAIN_S)] | None = None
    """Seconds until the drain begins. Until then runs start that are expected to end before. null:
    it begins at once."""
    hand_back_after_s: Annotated[float, Field(ge=0, le=MAX_DRAIN_S)] | None = None
    """Seconds until the workers hand back the runs that have not ended. Default: when the drain
    begins, if `starts_in_s` is set; else an hour, or half of a shorter drain."""
    lasts_s: Annotated[float, Field(gt=0, le=MAX_DRAIN_S)] | None = None
    """Seconds until the drain ends by itself. null: an admin ends it."""

    @model_validator(mode="after")
    def _hands_back_between_its_begin_and_its_end(self) -> Self:
        starts_in_s, hand_back_after_s = self.starts_in_s or 0.0, self.hand_back_after_s
        if hand_back_after_s is not None and hand_back_after_s < starts_in_s:
            detail = f"at least {starts_in_s:g}, when the drain begins"
            reject([Problem("/hand_back_after_s", detail)])
        if self.lasts_s is not None and starts_in_s >= self.lasts_s:
            detail = f"more than {starts_in_s:g}, when the drain begins"
            reject([Problem("/lasts_s", detail)])
        if self.lasts_s is not None and (hand_back_after_s or 0) >= self.lasts_s:
            detail = f"less than {self.lasts_s:g}, when the drain ends"
            reject([Problem("/hand_back_after_s", detail)])
        return self


class DrainOut(ResponseModel):
    """The drain of a machine, whose workers start no run once it has begun."""

    host: str
    """Name of the machine."""
    since: Moment
    """Time at which the admin drained it, or planned the drain."""
    starts_at: Moment
    """Time at which the drain begins."""
    has_begun: bool
    """False if it is planned: its workers start runs that are expected to end before."""
    hand_back_at: Moment
    """Time at which its workers hand back the runs that have not ended."""
    until: Moment | None
    """Time at which the drain ends by itself. null: an admin ends it."""
    drained_by: str
    """Name of the admin."""


class DrainList(ResponseModel):
    items: list[DrainOut]
    """Drains, the earliest first."""


class WorkerOut(ResponseModel):
    """A worker."""

    id: str
    """Id of the worker."""
    host: str
    """Name of its machine."""
    queue: Queue
    """Queue that it serves: `cpu` or `gpu`."""
    busy: bool
    """True if it runs an experiment."""
    experiment_id: str | None
    """Id of the experiment that it runs. null: none, or you may not read it."""
    memory_free: int
    """Free main memory of the machine, or of its container or control group if that has less, in
    bytes."""
    memory_total: int | None
    """All of this memory, in bytes. null: unknown."""
    memory_ours: int | None
    """Main memory that the worker's own run uses, in bytes. null: unknown."""
    gpu: str | None
    """Name of its GPU. null: none."""
    gpu_number: int | None
    """Number of the GPU on its machine. null: no GPU."""
    gpu_driver: str | None
    """Version of the GPU driver. null: no GPU."""
    gpu_memory_total: int | None
    """Memory of the GPU in bytes. null: no GPU."""
    gpu_memory_free: int | None
    """Free memory of the GPU in bytes. null: no GPU."""
    gpu_memory_ours: int | None
    """Memory of the GPU that the worker's own run uses, in bytes. null: no GPU."""
    store_full: bool
    """True if it starts no run, because the store's disk has less free than its reserve."""
    families: list[str]
    """Families that it can run: those of this version, and those of packages that are installed
    there."""
    drain: DrainOut | None
    """The drain of its machine, also a planned one. null: none."""
    started_at: Moment
    """Time of its start."""
    silent_s: float
    """Seconds since its last sign of life."""
    looked_s: float | None
    """Seconds since it last looked for a run, as of that sign. An idle worker looks every 5 s.
    null: it has not looked yet."""
    hangs: bool
    """True if it is idle and does not look for a run any more."""


class WorkerList(ResponseModel):
    items: list[WorkerOut]
    """Workers."""


class WorkerPast(ResponseModel):
    """History of a worker. Each list has an item for each interval of the answer; null: no sign of
    life."""

    id: str
    """Id of the worker."""
    busy: list[float | None]
    """Fraction of the interval in which it ran experiments."""
    memory_free: list[int | None]
    """Minimum of free memory in bytes, of the GPU if it has one, else of the machine."""
    memory_total: int | None
    """Memory of the GPU in bytes. null: no GPU."""


class WorkerHistory(ResponseModel):
    """History of the workers, in equal intervals."""

    stretch_s: int
    """Length of an interval in seconds."""
    at: list[datetime]
    """Start of each interval."""
    items: list[WorkerPast]
    """Workers."""
