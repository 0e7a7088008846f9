"""Base classes of parts of a spec and of sources of data, and the problems of a spec as values."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, NoReturn

from pydantic import BaseModel, ConfigDict, Field, GetCoreSchemaHandler
from pydantic_core import CoreSchema, PydanticCustomError

INT64_MAX = 2**63 - 1
MAX_PROBLEMS = 100
"""Maximum number of listed problems of a spec or request. Further problems are only counted."""

ExperimentId = Annotated[str, Field(pattern=r"^[A-Za-z0-9-]{1,64}$")]
Seed = Annotated[int, Field(ge=0, le=INT64_MAX)]
Seeds = Annotated[tuple[Seed, ...], Field(min_length=1, max_length=1000)]


def _accept_lists_for_tuples(schema: object) -> None:
    if isinstance(schema, dict):
        if schema.get("type") == "tuple":
            schema["strict"] = False
        schema = [*schema.values()]
    if isinstance(schema, list):
        for part in schema:
            _accept_lists_for_tuples(part)


class Spec(BaseModel):
    """Base class of specs and other input: immutable, no unknown fields, no NaN or infinity, no
    coercion, but that a tuple is given as a list: JSON has no tuples. The docstring below a field
    is its description in the JSON schema."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )

    @classmethod
    def __get_pydantic_core_schema__(
        cls, source: type[BaseModel], handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        schema = handler(source)
        _accept_lists_for_tuples(schema)
        return schema


@dataclass(frozen=True, slots=True)
class Problem:
    """An error in a spec: a JSON pointer (RFC 6901) and a sentence that states what is allowed."""

    pointer: str
    detail: str


class SpecError(ValueError):
    """A spec that cannot be run, with its first MAX_PROBLEMS problems and the `count` of all."""

    def __init__(self, problems: Sequence[Problem], count: int | None = None):
        self.problems = list(problems[:MAX_PROBLEMS])
        self.count = len(problems) if count is None else count
        super().__init__("; ".join(f"{p.pointer}: {p.detail}" for p in self.problems))

    def within(self, pointer: str) -> "SpecError":
        """Return the same error for a value that contains the spec at `pointer`."""
        inner = [Problem(pointer + p.pointer, p.detail) for p in self.problems]
        return SpecError(inner, self.count)


def reject(problems: list[Problem]) -> NoReturn:
    """Raise an error from a pydantic validator, with a pointer for each problem that is relative to
    the validated model."""
    raise PydanticCustomError(
        "spec_problems",
        "the fields contradict each other",
        {"problems": [(p.pointer, p.detail) for p in problems]},
    )


def seed_problems(seeds: tuple[int, ...]) -> list[Problem]:
    """Return the problems of a list of seeds."""
    if len(set(seeds)) == len(seeds):
        return []
    return [Problem("/seeds", "a seed may be listed once only")]


class Source(Spec):
    """Base class of the sources. A source that reads files names them here, once for the service
    and for the run."""

    named_by: ClassVar[str] = "source"
    """Field with the name of the data."""
    noun: ClassVar[str] = "data set"
    """Word for the data, in messages."""
    is_remote: ClassVar[bool] = False
    """True if files that are not there are downloaded."""

    @property
    def local_name(self) -> str:
        """Name of the data, in messages."""
        return str(getattr(self, self.named_by))

    def local(self, folder: Path) -> Path | None:
        """Return the file or folder that is read. None: the source reads none."""
        return None

    def is_local(self, folder: Path) -> bool:
        """Return whether everything that is read is there."""
        found = self.local(folder)
        return found is not None and found.is_file()

    def local_names(self, folder: Path) -> list[str]:
        """Return the names of all data that are available locally."""
        return []
