"""Sources of text, and how a text becomes sequences of tokens."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from mptcore.specs.base import Problem, Seed, Source, reject

MAX_LINE_CHARACTERS = 200_000
"""Maximum number of characters in the lines of a spec. Longer texts are uploaded."""

USUAL_CHARACTERS = 200
"""Number of characters of a text whose length is not known yet."""

TEXT_FILE = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,127}\.(txt|jsonl|csv|parquet)$"
TEXT_FORMATS = ("txt", "jsonl", "csv", "parquet")
UPLOAD_FORMATS = ("txt", "jsonl", "parquet")
"""Formats of uploads that hold text. A .csv file that is uploaded holds numbers."""
GLUE_HUB = "nyu-mll/glue"

_PAIRED = ("train", "validation", "test")
_MNLI = ("validation_matched", "validation_mismatched", "test_matched", "test_mismatched")
GLUE_SPLITS: dict[str, tuple[str, ...]] = {
    "ax": ("test",),
    "cola": _PAIRED,
    "mnli": ("train", *_MNLI),
    "mnli_matched": ("validation", "test"),
    "mnli_mismatched": ("validation", "test"),
    "mrpc": _PAIRED,
    "qnli": _PAIRED,
    "qqp": _PAIRED,
    "rte": _PAIRED,
    "sst2": _PAIRED,
    "stsb": _PAIRED,
    "wnli": _PAIRED,
}
GlueSubset = Literal[
    "ax",
    "cola",
    "mnli",
    "mnli_matched",
    "mnli_mismatched",
    "mrpc",
    "qnli",
    "qqp",
    "rte",
    "sst2",
    "stsb",
    "wnli",
]


def too_few(lines: int) -> str:
    return f"the text has {lines} lines: give at most {lines}, or null for all"


class Text(Source):
    """Base class of the sources."""

    packing: Literal["sentences", "blocks"] = "sentences"
    """`sentences` makes each text a sequence of its own, cut at `max_length` tokens. `blocks` joins
    all texts, each with its special tokens, and cuts them into sequences of `max_length` tokens."""
    max_length: Annotated[int, Field(ge=4, le=32_768)] = 512
    """Maximum number of tokens in a sequence, special tokens included."""
    n: Annotated[int, Field(ge=1, le=100_000_000)] | None = None
    """Number of texts, chosen at random by `seed` from those that are not empty. null: all."""
    heldout: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Fraction of the sequences that is excluded from training, chosen by `seed`. It gives
    `loss_heldout` and, after training, the scores."""
    seed: Seed = 0
    """Seed of the choice of texts and of the held-out set."""

    @property
    def has_columns(self) -> bool:
        """True if the source may have columns beside its text."""
        return False

    def text_lengths(self) -> Iterator[int]:
        """Yield the number of characters of each text, as far as it is known. A text of a file
        counts as one of the usual length."""
        yield from [USUAL_CHARACTERS] * (self.n or 0)

    def problems(self) -> list[Problem]:
        """Return the problems of this source by itself."""
        return []


class GlueText(Text):
    """A subset of GLUE: sentences or pairs of sentences. It is read from the folder
    MPT_DATA_DIR/glue/SUBSET if that has SPLIT.parquet or SPLIT.jsonl, else from the hub."""

    named_by: ClassVar[str] = "subset"
    noun: ClassVar[str] = "GLUE subset"
    is_remote: ClassVar[bool] = True

    source: Literal["glue"]
    """Source of the text."""
    subset: GlueSubset
    """Task of GLUE."""
    split: Annotated[str, Field(min_length=1, max_length=40)]
    """Split of the subset, such as validation."""

    def problems(self) -> list[Problem]:
        splits = GLUE_SPLITS[self.subset]
        if self.split in splits:
            return []
        detail = f"the splits of {self.subset} are {', '.join(splits)}"
        return [Problem("/data/split", f"{detail}; not {self.split!r}")]

    @property
    def local_name(self) -> str:
        return f"{self.subset}/{self.split}"

    def local(self, folder: Path) -> Path:
        files = [folder / "glue" / f"{self.local_name}.{suffix}" for suffix in TEXT_FORMATS]
        return next((file for file in files if file.is_file()), files[-1])

    def local_names(self, folder: Path) -> list[str]:
        return [
            f"{subset}/{path.stem}"
            for subset in GLUE_SPLITS
            for path in sorted((folder / "glue" / subset).glob("*.*"))
        ]


class PlainText(Text):
    """Texts from exactly one of a file, an upload, and lines in the spec. Files are .txt, with one
    text in each line, or .jsonl, .csv or .parquet, with the texts in `column`. An upload is not
    .csv."""

    named_by: ClassVar[str] = "file"
    noun: ClassVar[str] = "text"

    source: Literal["text"]
    """Source of the text."""
    file: Annotated[str, Field(pattern=TEXT_FILE)] | None = None
    """Name of a file in the folder MPT_DATA_DIR/text."""
    lines: (
        Annotated[
            tuple[Annotated[str, Field(min_length=1, max_length=100_000)], ...],
            Field(min_length=1, max_length=10_000),
        ]
        | None
    ) = None
    """Texts in the spec itself, one in each item."""
    dataset: Annotated[str, Field(pattern=r"^[a-z0-9-]{1,64}$")] | None = None
    """Id of an upload. A submission may give its file name, which the id replaces."""
    column: Annotated[str, Field(min_length=1, max_length=200)] = "text"
    """Column of a .jsonl, .csv or .parquet file that has the texts."""
    second_column: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    """Column with a second text of each row, which follows the first one as a text of its own, such
    as the bad sentence of a minimal pair. Rows that lack one of the two are not chosen by `n`, and
    a curve leaves them out."""

    @model_validator(mode="after")
    def _one_of_three(self) -> Self:
        if sum(given is not None for given in (self.file, self.lines, self.dataset)) != 1:
            reject([Problem("/file", "give exactly one of file, lines and dataset")])
        return self

    @property
    def text_columns(self) -> tuple[str, ...]:
        """Columns that have the texts, in the order of the texts of a row."""
        return (self.column,) if self.second_column is None else (self.column, self.second_column)

    def problems(self) -> list[Problem]:
        if self.second_column is not None and not self.has_columns:
            detail = "columns are in .jsonl, .csv and .parquet files and uploads: leave it out"
            return [Problem("/data/second_column", detail)]
        if self.second_column == self.column:
            return [
                Problem("/data/second_column", f"{self.column} is the first column: name another")
            ]
        if (self.n or 0) % len(self.text_columns):
            return [Problem("/data/n", "an even number, because each row has two texts")]
        if self.lines is not None and (self.n or 0) > len(self.lines):
            return [Problem("/data/n", too_few(len(self.lines)))]
        characters = sum(map(len, self.lines or ()))
        if characters <= MAX_LINE_CHARACTERS:
            return []
        detail = f"{MAX_LINE_CHARACTERS} characters in all, not {characters}: upload longer texts"
        return [Problem("/data/lines", f"at most {detail}")]

    @property
    def has_columns(self) -> bool:
        return self.dataset is not None or not (self.file or ".txt").endswith(".txt")

    def text_lengths(self) -> Iterator[int]:
        if self.lines is None:
            return super().text_lengths()
        return map(len, self.lines)

    def local(self, folder: Path) -> Path | None:
        return None if self.file is None else folder / "text" / self.file

    def local_names(self, folder: Path) -> list[str]:
        return sorted(one.name for one in (folder / "text").glob("*") if one.is_file())


TextSource = Annotated[GlueText | PlainText, Field(discriminator="source")]
