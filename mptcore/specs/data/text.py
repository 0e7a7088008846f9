"""Texts: where they come from, and how they become sequences of tokens."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from mptcore.specs.base import Problem, Seed, Spec, reject

MOST_LINE_CHARACTERS = 200_000
"""The most that the lines given in a spec may come to; longer texts are uploaded."""

TEXT_FILE = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,127}\.(txt|jsonl|parquet)$"

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


class Text(Spec):
    """`packing`: sentences gives each text a sequence of its own, cut at `max_length` tokens (the
    special ones included); blocks joins all texts, each with its special tokens, and cuts them into
    sequences of `max_length`. `n`: so many texts chosen at random by `seed`, all where it is null.
    `heldout`: the fraction of the sequences, chosen by `seed`, that is kept out of training and
    gives `loss_heldout` and, with training, the scores."""

    packing: Literal["sentences", "blocks"] = "sentences"
    max_length: Annotated[int, Field(ge=4, le=32_768)] = 512
    n: Annotated[int, Field(ge=1, le=100_000_000)] | None = None
    heldout: Annotated[float, Field(gt=0, lt=1)] | None = None
    seed: Seed = 0

    def problems(self) -> list[Problem]:
        """What is wrong with this source on its own."""
        return []


class GlueText(Text):
    """A subset of GLUE: sentences, or pairs of them. From the folder MPT_DATA_DIR/glue/SUBSET where
    it holds SPLIT.parquet or SPLIT.jsonl, else from the hub."""

    source: Literal["glue"]
    subset: GlueSubset
    split: Annotated[str, Field(min_length=1, max_length=40)]

    def problems(self) -> list[Problem]:
        splits = GLUE_SPLITS[self.subset]
        if self.split in splits:
            return []
        detail = f"the splits of {self.subset} are {', '.join(splits)}"
        return [Problem("/data/split", f"{detail}; not {self.split!r}")]


class PlainText(Text):
    """Texts of one's own: `file`, a name in the folder MPT_DATA_DIR/text; `dataset`, the id of an
    upload; or `lines`, here in the spec. Files are .txt, with a text a line, or .jsonl or .parquet
    with the texts in `column`."""

    source: Literal["text"]
    file: (
        Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,127}\.(txt|jsonl|parquet)$")]
        | None
    ) = None
    lines: (
        Annotated[
            tuple[Annotated[str, Field(min_length=1, max_length=100_000)], ...],
            Field(min_length=1, max_length=10_000, strict=False),
        ]
        | None
    ) = None
    dataset: Annotated[str, Field(pattern=r"^[a-z0-9-]{1,64}$")] | None = None
    column: Annotated[str, Field(min_length=1, max_length=200)] = "text"

    @model_validator(mode="after")
    def _one_of_three(self) -> Self:
        if sum(given is not None for given in (self.file, self.lines, self.dataset)) != 1:
            reject([Problem("/file", "give exactly one of file, lines and dataset")])
        return self

    def problems(self) -> list[Problem]:
        characters = sum(map(len, self.lines or ()))
        if characters <= MOST_LINE_CHARACTERS:
            return []
        detail = f"{MOST_LINE_CHARACTERS} characters in all, not {characters}: upload longer texts"
        return [Problem("/data/lines", f"at most {detail}")]


TextSource = Annotated[GlueText | PlainText, Field(discriminator="source")]
