"""Settings of fair share, and the decay of usage."""

from datetime import timedelta

from pydantic import BaseModel, ConfigDict, Field

WEEK_S = timedelta(days=7).total_seconds()


class FairShare(BaseModel):
    """Fair share among users. Times are in seconds."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    half_life_s: float = Field(default=WEEK_S, gt=0)
    """After so long a use of a slot counts half (Slurm's PriorityDecayHalfLife)."""
    gpu_weight: float = Field(default=10.0, gt=0)
    """What a second of a GPU slot counts, in seconds of a CPU slot."""
    advance_s: float = Field(default=60.0, ge=0)
    """A run that is under way counts for at least so long, when the next is chosen."""
    max_running: int | None = Field(default=None, ge=1)
    """Of one user at once (Slurm's MaxJobs), where the user has no limit of its own; unset is no
    limit."""
    spare_slots: int = Field(default=1, ge=0)
    """Of the workers of each kind, so many that the runs of one user leave to the others. It does
    not count where one user alone may submit, nor where there are no more workers than that."""
    max_submitted: int = Field(default=5000, ge=1)
    """Experiments of one user that have not ended (Slurm's MaxSubmitJobs), where the user has no
    limit of its own."""
    max_sweeps: int = Field(default=1000, ge=1)
    """Sweeps of one user, deleted ones too until they are purged: a sweep whose points are all
    answered from the cache has no experiments that would count."""
    max_bytes: int | None = Field(default=None, ge=0)
    """Bytes that a user keeps: specs, records, artifacts and data sets, where the user has no limit
    of its own. Submissions and uploads beyond it are refused; unset is no limit."""
    max_gpu_hours_a_day: float | None = Field(default=None, gt=0)
    """A user who has had so many hours of GPU slots within the last 24 begins no other run on a GPU
    (what runs goes on), where the user has no limit of its own; unset is no limit."""

    def decayed(self, usage_s: float, for_s: float) -> float:
        """Return a usage after it has decayed for some seconds."""
        return float(usage_s * 2.0 ** (-for_s / self.half_life_s))
