"""Messages of a supervisor: the envelope of a run, then orders."""

import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Literal

from pydantic import Field, ValidationError

from mptcore.specs import ExperimentSpec, Limits, Spec, parse_json, spec_error, validate_spec
from mptcore.specs.stored import in_present_form

UNLIMITED = Limits(**dict.fromkeys(Limits.model_fields, 2**62))
"""Limits of specs in envelopes: the sender has checked its own limits."""


class Resume(Spec):
    """Checkpoint to resume from. If all files are damaged, the run restarts. In both cases its
    records are the same, and those up to `after` are not sent again."""

    files: list[str]
    """Checkpoints, the latest first. The first one that is whole is used."""
    after: int
    """`seq` of the last record that the supervisor has."""


class Input(Spec):
    """A file that the spec names by an id."""

    file: str
    """Path of the file."""
    sha256: str
    """SHA-256 of its content, in hexadecimal."""


class Envelope(Spec):
    """The first line of a supervised run."""

    spec: Any
    """Spec of the experiment."""
    checkpoint_dir: str | None = None
    """Folder for checkpoints. null: none are saved."""
    work_dir: str | None = None
    """Folder for files that the run keeps."""
    resume: Resume | None = None
    """Checkpoint to resume from. null: all records are sent, from the first."""
    inputs: dict[str, Input] | None = None
    """Uploads and stored weights that the spec names, by id."""
    save_every_s: Annotated[float, Field(gt=0)] = 30.0
    """Approximate number of seconds between checkpoints."""
    environment: dict[str, str] = Field({})
    """Additional environment variables of the run."""


class Order(Spec):
    """A later line of a supervisor."""

    checkpoint: str | None = None
    """File of a checkpoint that is stored."""
    stop: Literal["checkpoint", "withdrawn"] | None = None
    """Request to save a checkpoint and stop, or to go on after all."""


@dataclass(frozen=True)
class Assignment:
    """A validated envelope."""

    spec: ExperimentSpec
    checkpoint_dir: Path | None = None
    work_dir: Path | None = None
    resume: Resume | None = None
    inputs: dict[str, Input] | None = None
    save_every_s: float = 30.0
    """Approximate number of seconds between checkpoints."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Environment variables to set before the run starts."""


def parse_assignment(text: bytes) -> Assignment:
    """Return the assignment in a line: an envelope, or a bare spec. Raise SpecError, with
    pointers into the spec, or to other fields of the envelope."""
    value = parse_json(text)
    if not (isinstance(value, dict) and "spec" in value):
        return Assignment(validate_spec(value))
    try:
        envelope = Envelope.model_validate(value)
    except ValidationError as error:
        raise spec_error(error.errors(), value, Envelope) from None
    return Assignment(
        # Accepted before, perhaps by an earlier version.
        validate_spec(in_present_form(envelope.spec), UNLIMITED),
        Path(envelope.checkpoint_dir) if envelope.checkpoint_dir else None,
        Path(envelope.work_dir) if envelope.work_dir else None,
        envelope.resume,
        envelope.inputs,
        envelope.save_every_s,
        envelope.environment,
    )


def follow_orders(lines: BinaryIO, obey: Callable[[Order], None]) -> None:
    """Read orders in a thread and call `obey` with each. The end of the file ends the process;
    lines that are not orders are ignored."""

    def follow() -> None:
        for line in lines:
            try:
                order = Order.model_validate_json(line)
            except ValidationError:
                continue
            obey(order)
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()
