"""Response bodies of queue positions, run times and shares."""

from datetime import datetime

from service.experiments.models import Queue
from service.schemas import Moment, ResponseModel


class RuntimeOut(ResponseModel):
    """Estimated run time, learned from the family's latest runs on the same kind of slot."""

    median_s: float
    """Median in seconds."""
    low_s: float
    """Lower bound in seconds: one run in ten is shorter."""
    high_s: float
    """Upper bound in seconds: one run in ten is longer."""
    runs: int
    """Number of runs that the estimate uses."""
    host: str | None
    """Machine of these runs: the slowest one that has workers now. null: runs on any machine."""


class QueuePosition(ResponseModel):
    """Queue position of an experiment among those that wait for the same workers."""

    position: int
    """Number of experiments that run before it."""
    reason: str
    """Reason why it waits."""
    blocked: bool
    """True if more than its turn keeps it waiting: no worker, a drained machine, a full disk, a
    limit."""
    estimated_start: datetime | None
    """Estimated start. null: unknown."""
    estimate: str
    """Basis of the estimated start, or why there is none."""
    latest_start: datetime | None
    """Time at which it starts at the latest, unless users with less usage submit meanwhile. null:
    none can be promised."""
    promise: str | None
    """Why it starts by then, or why no latest start can be promised. null: more than its turn keeps
    it waiting, or runs do not give way."""


class Share(ResponseModel):
    """A user's share of the server, in the terms of Slurm's sshare. Usage is in decayed
    slot-seconds; a second of a GPU slot counts as several seconds of a CPU slot."""

    raw_shares: int
    """The user's shares."""
    norm_shares: float
    """The user's fraction of the shares of all users that may submit and have submitted. 0 for
    viewers and disabled users."""
    raw_usage: float
    """The user's decayed slot-seconds."""
    effectv_usage: float
    """The user's fraction of all users' usage."""
    level_fs: float | None
    """norm_shares / effectv_usage. Above 1: less used than entitled to. null: no usage yet."""
    fair_share: float
    """Rank among these users: 1 for the next in turn, falling evenly to 1 / users for the last. 0
    for viewers and disabled users."""


class QueuedOut(ResponseModel):
    """A queued experiment of the caller."""

    id: str
    """Id of the experiment."""
    name: str | None
    """Name of the experiment."""
    title: str
    """Its name or, without one, its spec in short."""
    priority: int
    """Its priority among its owner's experiments."""
    device: str
    """Device that its spec asks for."""
    created_at: Moment
    """Time of the submission."""
    queue: QueuePosition
    """Its queue position."""


class SlotOut(ResponseModel):
    """A worker, and whose run it has. All who may read the queue see the names of users. Ids and
    titles of experiments that the caller may not read are null."""

    worker: str
    """Id of the worker."""
    name: str
    """Its GPU and its machine."""
    queue: Queue
    """Queue that it serves: `cpu` or `gpu`."""
    owner: str | None
    """Name of the user whose run it has. null: it has none."""
    project: str | None
    """Name of the project that the run is charged to. null: none, or you may not read the run."""
    experiment_id: str | None
    """Id of the run. null: none, or you may not read it."""
    title: str | None
    """Title of the run. null: none, or you may not read it."""
    since: Moment | None
    """Start of the run on this worker."""
    keeps_until: Moment | None
    """End of its slice: until then it gives way only to a priority above everyone's. null: runs do
    not give way."""
    expected_end: Moment | None
    """Expected end of the run. null: unknown."""
    displaced_by: list[str]
    """The first three users who wait with less usage for their shares, in their order. The run
    gives way to their experiments after its slice."""
    gives_way_to: str | None
    """Experiment that it is asked to give way to now: its owner's name, and its title if you may
    read it. null: none."""


class ProjectUsage(ResponseModel):
    """A project's usage of the server, by all its members in it."""

    name: str
    """Name of the project."""
    running: int
    """Number of running experiments."""
    max_running: int | None
    """Maximum number of running experiments. null: no limit."""
    gpu_hours: float | None
    """Hours of GPU slots in the last 24 hours. null: it has no limit of GPU hours."""
    max_gpu_hours_a_day: float | None
    """Maximum hours of GPU slots in 24 hours. null: no limit."""
    share: Share
    """The project's share of the server."""


class QueueOut(ResponseModel):
    """The caller's usage, limits, share, and queued experiments, and who has the slots."""

    running: int
    """Number of your running experiments."""
    max_running: int | None
    """Maximum number of your running experiments. null: no limit."""
    submitted: int
    """Number of your experiments that have not ended."""
    max_submitted: int
    """Maximum number of your experiments that have not ended. null: no limit."""
    gpu_hours: float | None
    """Your hours of GPU slots in the last 24 hours. null: you have no limit of GPU
    hours."""
    max_gpu_hours_a_day: float | None
    """Maximum hours of GPU slots in 24 hours. null: no limit."""
    kept_bytes: int
    """Bytes of your stored specs, records, artifacts and data sets."""
    max_bytes: int | None
    """Maximum of `kept_bytes`. null: no limit."""
    share: Share
    """Your share of the server, with what you run outside of projects."""
    projects: list[ProjectUsage]
    """Your projects, by name."""
    items: list[QueuedOut]
    """The first hundred queued experiments, in their order."""
    slots: list[SlotOut]
    """The workers and whose runs they have."""


class UsageOut(ResponseModel):
    """A user's usage of the server."""

    name: str
    """Name of the user."""
    running: int
    """Number of running experiments."""
    kept_bytes: int
    """Bytes of stored specs, records, artifacts and data sets."""
    share: Share
    """The user's share of the server."""


class UsageList(ResponseModel):
    items: list[UsageOut]
    """Users, those with the most recent usage first, with what they run outside of projects."""
    projects: list[ProjectUsage]
    """Projects with members, by name."""
