"""What a supervisor sends: the envelope of a run, then acknowledgements and requests."""

import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from mptcore.specs import ExperimentSpec, Limits, parse_json, spec_error, validate_spec
from mptcore.specs.stored import in_present_form

UNLIMITED = Limits(**dict.fromkeys(Limits.model_fields, 2**62))
"""Who sends an envelope has limits of its own."""


class _Message(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Resume(_Message):
    """The checkpoints to go on from, the latest first. The first that is whole serves, or none: the
    records are the same, and those up to `after` are not given again."""

    files: list[str]
    after: int


class Input(_Message):
    """Where a file lies that the spec names by an id, and its SHA-256."""

    file: str
    sha256: str


class Envelope(_Message):
    """The first line of a supervised run. With `resume` the records after `resume.after` are given;
    without it all, from the first. `inputs` are the uploads and kept weights, by id. `environment`
    holds environment variables that this run needs beside those of its process."""

    spec: Any
    checkpoint_dir: str | None = None
    work_dir: str | None = None
    resume: Resume | None = None
    inputs: dict[str, Input] | None = None
    save_every_s: Annotated[float, Field(gt=0)] = 30.0
    environment: dict[str, str] = {}


class Order(_Message):
    """A later line: all records up to `committed` are kept, `checkpoint` is, or a request to save
    and stop."""

    committed: int | None = None
    checkpoint: str | None = None
    stop: Literal["checkpoint"] | None = None


@dataclass(frozen=True)
class Assignment:
    """What the runner is to do."""

    spec: ExperimentSpec
    checkpoint_dir: Path | None = None
    work_dir: Path | None = None
    resume: Resume | None = None
    inputs: dict[str, Input] | None = None
    save_every_s: float = 30.0
    """How long a run goes on without a checkpoint, about."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Environment variables to set before the run begins."""


def parse_assignment(text: bytes, union: Any = ExperimentSpec) -> Assignment:
    """The assignment in a line: an envelope, or a bare spec of a union. Raises SpecError; the
    pointers are those of the spec, or of the envelope's other fields."""
    value = parse_json(text)
    if not (isinstance(value, dict) and "spec" in value):
        return Assignment(validate_spec(value, union=union))
    try:
        envelope = Envelope.model_validate(value)
    except ValidationError as error:
        raise spec_error(error.errors(), value, Envelope) from None
    return Assignment(
        # It was accepted before, perhaps by an earlier version.
        validate_spec(in_present_form(envelope.spec), UNLIMITED, union),
        Path(envelope.checkpoint_dir) if envelope.checkpoint_dir else None,
        Path(envelope.work_dir) if envelope.work_dir else None,
        envelope.resume,
        envelope.inputs,
        envelope.save_every_s,
        envelope.environment,
    )


def follow_orders(lines: BinaryIO, obey: Callable[[Order], None]) -> None:
    """Obey the lines to come, in a thread. The end of the file ends the process; a line that is no
    order is passed over."""

    def follow() -> None:
        for line in lines:
            try:
                order = Order.model_validate_json(line)
            except ValidationError:
                continue
            obey(order)
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()
