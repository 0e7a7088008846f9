"""Divide the scoring of one run among processes: one coordinator and any number of helpers.

Every process runs the whole spec with the same seeds, so that all draw the same masks in the same
order. The batches that are scored are numbered. The scores of a batch depend on the spec and on its
number alone, not on the process that computes them. The coordinator is the run itself: it uses each
batch once, in order, and writes the records. A helper computes the batches that it has claimed, and
writes no records; it replaces all other scores by placeholders.

Claims only avoid double work. A coordinator that has nothing else to compute computes the first
missing batch itself, so it never depends on a helper.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import torch
from torch import Tensor

BatchT = TypeVar("BatchT")
Shape = tuple[int, int, int]
"""Shape of the scores of a batch: models, rows, and masks or masked tokens."""
Scored = tuple[BatchT, Tensor]
"""A batch and its scores."""

MAX_AHEAD = 256
"""Maximum number of batches that a coordinator draws ahead of the batch whose scores it needs."""


MIN_SHARE = 0.25
"""Minimum share of a helper's time that is spent on computing scores. Below it the helper ends,
because it mostly draws masks whose scores others compute."""
MEASURE_S = 5.0
"""Minimum seconds of work, without waiting for claims, from which this share is measured."""


class NotWorthwhile(Exception):
    """A helper draws masks for most of its time, so it helps little."""


class Division(Protocol):
    """A process's part in a divided run."""

    @property
    def helps(self) -> bool:
        """True in a helper."""

    def claim(self, least: int) -> int | None:
        """Return the first batch from number `least` on that this process is to compute, claiming
        more if necessary. None if no claim is answered in time; then try again."""

    def found(self, number: int) -> Tensor | None:
        """Return the scores of a batch that a helper has computed, or None if they have not
        arrived. Returns them once."""

    def put(self, number: int, scores: Tensor) -> None:
        """Send the scores of a batch to the coordinator."""

    def plan(self, number: int, compute: Callable[[], Tensor]) -> Tensor | None:
        """Return a plan that depends on scores. The coordinator computes and publishes it. A helper
        returns the published one, or None if it has not arrived in time; then try again."""


@dataclass
class Drawn(Generic[BatchT]):
    """A batch that is drawn but not used yet."""

    batch: BatchT
    scores: Tensor | None = None


def coordinated(
    batches: Iterator[BatchT],
    first: int,
    compute: Callable[[BatchT], Tensor],
    shape: Callable[[BatchT], Shape],
    division: Division,
) -> Iterator[Scored[BatchT] | None]:
    """Yield each batch, numbered from `first`, with its scores, in order. None is yielded after a
    batch that was computed before its turn. Scores of another shape are ignored, because their
    helper cut the batches differently."""
    ahead: deque[Drawn[BatchT]] = deque()
    least, more = first, True

    def draw_to(number: int) -> bool:
        """Draw batches up to a number. Return whether that batch exists and is not too far
        ahead."""
        nonlocal more
        while more and first + len(ahead) <= number and len(ahead) < MAX_AHEAD:
            batch = next(batches, None)
            more = batch is not None
            if batch is not None:
                ahead.append(Drawn(batch))
        return number < first + len(ahead)

    def next_to_compute() -> int | None:
        """Return the number of this process's next batch, or the first that is missing if none of
        its own is left. None at the end."""
        nonlocal least
        claimed = division.claim(least) if more or least < first + len(ahead) else None
        if claimed is not None and draw_to(claimed):
            least = claimed + 1
            return claimed
        draw_to(first)
        missing = (first + i for i, drawn in enumerate(ahead) if drawn.scores is None)
        return next(missing, None)

    def take(drawn: Drawn[BatchT], number: int) -> None:
        found = division.found(number) if drawn.scores is None else None
        if found is not None and found.shape == shape(drawn.batch):
            drawn.scores = found

    while True:
        for i, drawn in enumerate(ahead):
            take(drawn, first + i)
        while ahead and (scores := ahead[0].scores) is not None:
            first += 1
            yield ahead.popleft().batch, scores
        least = max(least, first)
        number = next_to_compute()
        if number is None:
            if not ahead:
                return
            continue
        drawn = ahead[number - first]
        take(drawn, number)
        if drawn.scores is None:
            drawn.scores = compute(drawn.batch)
        if number > first:
            yield None


def helped(
    batches: Iterator[BatchT],
    first: int,
    compute: Callable[[BatchT], Tensor],
    shape: Callable[[BatchT], Shape],
    division: Division,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Scored[BatchT] | None]:
    """Yield each batch, numbered from `first`, with its scores if this process has claimed it, else
    with placeholders. None is yielded while a claim is not answered. Raises NotWorthwhile."""
    claimed: int | None = None
    began: float | None = None  # at the first batch of its own: those before it must be drawn
    waited_s = computed_s = 0.0
    for number, batch in enumerate(batches, first):
        while claimed is None or claimed < number:
            asked = clock()
            claimed = division.claim(number)
            waited_s += clock() - asked
            if claimed is None:
                yield None
        if claimed != number:
            yield batch, placeholders(shape(batch))
            continue
        at = clock()
        if began is None:
            began, waited_s = at, 0.0
        scores = compute(batch)
        division.put(number, scores)
        computed_s += clock() - at
        yield batch, scores
        worked_s = clock() - began - waited_s
        if worked_s > MEASURE_S and computed_s < MIN_SHARE * worked_s:
            raise NotWorthwhile


def placeholders(shape: Shape) -> Tensor:
    """Return numbers that stand for scores computed elsewhere. They are positive and vary, so that
    no estimate fails on them."""
    masks = shape[2]
    return (1 + (torch.arange(masks, dtype=torch.float64) % 7) / 7).expand(shape)
