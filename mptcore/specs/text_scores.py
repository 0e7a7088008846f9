"""Scores of each text by a masked language model."""

from typing import Annotated, Literal

from pydantic import Field

from mptcore.specs.base import Problem, Spec

MIN_TEXT_MASKS = 32
"""Minimum number of masks for the cumulative score of one text: the pilot, and as many more."""

TextScore = Literal[
    "pll",
    "pll_word_l2r",
    "unmasked",
    "cumulative",
    "conditional",
    "masked_marginal",
    "wild_type_marginal",
]
OF_MUTATIONS = ("masked_marginal", "wild_type_marginal")
"""Scores of changes of a wild type. The others are scores of texts."""
Column = Annotated[str, Field(min_length=1, max_length=200)]

ROW_BYTES = 400
"""Approximate bytes of a text's row of results, without the text and its tokens."""
TOKEN_BYTES = 100
"""Approximate bytes of a token in a row of results."""


class TextScores(Spec):
    """Scores of each text of the source, as a table with one row for each text."""

    scores: Annotated[tuple[TextScore, ...], Field(min_length=1, max_length=7)] = ("pll",)
    """Scores of a text, all in nats. `pll`: the sum of log p of each token given all others.
    `pll_word_l2r`: the same with the later tokens of its own word masked too. `unmasked`: the sum
    of log p of each token with nothing masked, in one pass. `cumulative`: the cumulative score,
    from masks of all sizes. `conditional`: `pll` of the tokens after a given beginning.
    `masked_marginal`, of a mutation: log p of the new letters minus that of the wild type's, with
    all changed places masked. `wild_type_marginal`: the same with nothing masked. The first score
    orders groups."""
    per_token: bool = False
    """True also gives each token's characters and its `pll`, `pll_word_l2r` and `conditional`."""
    target_std_err: Annotated[float, Field(gt=0, le=1e6)] | None = None
    """Target standard error of the cumulative score of each text, in nats, or as a fraction of the
    score if `relative`. `cumulative` needs it."""
    relative: bool = False
    """True takes `target_std_err` as a fraction of each score, such as 0.01."""
    max_masks: Annotated[int, Field(ge=MIN_TEXT_MASKS, le=10_000_000)] = 10_000
    """Maximum number of masks for the cumulative score of one text, pilot included."""
    group_size: Annotated[int, Field(ge=2, le=10_000)] | None = None
    """Number of consecutive texts that form a group, such as 2 for minimal pairs. The first text of
    a group is its reference."""
    group_column: Column | None = None
    """Column of the file whose equal values form a group."""
    category_column: Column | None = None
    """Column of the file with the category of each group, such as the grammatical phenomenon of a
    minimal pair, with at most 200 different values. A group has the category of its first text. The
    run gives the accuracy in each category."""
    label_column: Column | None = None
    """Column of numbers in the file. The run gives the rank correlation of the first score with
    it."""
    prefix_column: Column | None = None
    """Column of the file with the beginning of each text that `conditional` takes as given, or with
    its number of characters. `conditional` needs it."""
    window_overlap: Annotated[int, Field(ge=0, le=100_000)] | None = None
    """Number of tokens that neighbouring windows of a text share, such as 128, at most half of a
    window. A text with more
    tokens than the model or `max_length` allows is read in windows, and each of its tokens is
    scored where it is farthest from an end of its window. null: such a text has no scores."""
    wild_type: Annotated[str, Field(min_length=1, max_length=20_000)] | None = None
    """Sequence of letters that mutations change. `masked_marginal` and `wild_type_marginal` need
    it. Each text is then a mutation, such as A24G, or A24G:K30R for several changes; places count
    from 1."""

    @property
    def columns(self) -> dict[str, str]:
        """Columns that are read in addition to the text, by the field that names them."""
        names = ("group_column", "category_column", "label_column", "prefix_column")
        return {name: column for name in names if (column := getattr(self, name)) is not None}

    def problems(self) -> list[Problem]:
        """Return the contradictions between the fields."""
        problems = []
        if len(set(self.scores)) < len(self.scores):
            problems.append(Problem("/evaluate/texts/scores", "a score may be listed once only"))
        if ("cumulative" in self.scores) != (self.target_std_err is not None):
            detail = "the target error of the cumulative scores: `cumulative` needs it"
            problems.append(Problem("/evaluate/texts/target_std_err", f"{detail}, others do not"))
        if self.relative and (self.target_std_err is None or self.target_std_err >= 1):
            detail = "only with a target_std_err below 1, a fraction of each score"
            problems.append(Problem("/evaluate/texts/relative", detail))
        if ("conditional" in self.scores) != (self.prefix_column is not None):
            detail = "the column with the beginnings: `conditional` needs it, others do not"
            problems.append(Problem("/evaluate/texts/prefix_column", detail))
        of_mutations = {*OF_MUTATIONS} & {*self.scores}
        if of_mutations and len(of_mutations) < len({*self.scores}):
            detail = f"{' and '.join(OF_MUTATIONS)} are not scores of texts: score these by another"
            problems.append(Problem("/evaluate/texts/scores", f"{detail} run"))
        if bool(of_mutations) != (self.wild_type is not None):
            detail = f"the sequence that mutations change: {' and '.join(OF_MUTATIONS)} need it"
            problems.append(Problem("/evaluate/texts/wild_type", f"{detail}, others do not"))
        without = {"cumulative", *OF_MUTATIONS} & {*self.scores}
        if self.window_overlap is not None and without:
            detail = f"{' and '.join(sorted(without))} cannot be computed in windows: leave it null"
            problems.append(Problem("/evaluate/texts/window_overlap", detail))
        if self.per_token and not {"pll", "pll_word_l2r", "conditional"} & {*self.scores}:
            detail = "only pll, pll_word_l2r and conditional have scores of tokens: list one"
            problems.append(Problem("/evaluate/texts/per_token", detail))
        has_groups = self.group_size is not None or self.group_column is not None
        if self.category_column is not None and not has_groups:
            detail = "categories are of groups: set group_size or group_column, or leave it null"
            problems.append(Problem("/evaluate/texts/category_column", detail))
        if self.group_size is not None and self.group_column is not None:
            detail = "groups are of consecutive texts or of equal values: give one of the two"
            problems.append(Problem("/evaluate/texts/group_column", detail))
        return problems

    def row_bytes(self, characters: int) -> int:
        """Estimate the bytes of the row of a text with some characters."""
        tokens = characters * TOKEN_BYTES if self.per_token else 0
        return ROW_BYTES + 4 * characters + tokens
