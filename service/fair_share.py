"""Settings of fair share, and the decay of usage."""

from datetime import timedelta
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

GIB = 2**30
HOUR_S = timedelta(hours=1).total_seconds()
WEEK_S = timedelta(days=7).total_seconds()


class FairShare(BaseModel):
    """Fair share among users. Times are in seconds."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    half_life_s: float = Field(default=WEEK_S, gt=0)
    """Usage of a slot counts half after this time (Slurm's PriorityDecayHalfLife)."""
    gpu_weight: float = Field(default=10.0, gt=0)
    """Seconds of a CPU slot that a second of a GPU slot counts as."""
    advance_s: float = Field(default=60.0, ge=0)
    """Minimum time that a running experiment counts for when the next one is chosen."""
    max_running: int | None = Field(default=None, ge=1)
    """Default maximum of a user's running experiments (Slurm's MaxJobs). Unset: no limit."""
    spare_slots: int = Field(default=1, ge=0)
    """Workers of each kind that one user's runs leave free for other users. It has no effect if
    only one user may submit, or if there are no more workers than this."""
    slice_s: float = Field(default=4 * HOUR_S, ge=0)
    """Time after which a run gives way to a waiting one whose owner has less usage for their
    shares. It saves a checkpoint and continues when it is its turn again. 0: never."""
    max_submitted: int = Field(default=5000, ge=1)
    """Default maximum of a user's experiments that have not ended (Slurm's MaxSubmitJobs)."""
    max_bytes: Annotated[
        int | None, BeforeValidator(lambda value: None if value == "none" else value)
    ] = Field(default=20 * GIB, ge=0)
    """Default maximum number of bytes that a user stores: specs, records, artifacts and data sets.
    Further submissions and uploads are refused, and nothing is deleted. `none`: no limit."""
    max_gpu_hours_a_day: float | None = Field(default=None, gt=0)
    """Default maximum hours of GPU slots of a user in 24 hours. Above it no further GPU run starts;
    running ones continue. Unset: no limit."""

    def decayed(self, usage_s: float, for_s: float) -> float:
        """Return a usage after it has decayed for some seconds."""
        return float(usage_s * 2.0 ** (-for_s / self.half_life_s))
