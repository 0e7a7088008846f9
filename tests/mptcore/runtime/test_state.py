"""State of a run: scores and progress."""

from collections.abc import Iterator

import torch

from mptcore.protocol.records import Log, Progress, Stage
from mptcore.runtime.state import MaskPlan, Records, RunState, with_progress


def in_order(state: RunState, sizes: list[int]) -> list[list[float]]:
    """Return the scores of the first model for batches of these sizes; computed ones are 9."""
    found = state.scored(
        sizes, lambda size: torch.full((2, 1, size), 9.0), lambda size: (2, 1, size)
    )
    return [scored[1][0, 0].tolist() for scored in found]


def test_scores_of_batches_of_another_size_are_computed_again() -> None:
    """They were cut for a machine with other memory; what came before them stays."""
    scores = torch.split(torch.arange(8.0).expand(2, 1, 8), [3, 3, 2], dim=2)
    state = RunState(scores=[*scores], at_safe_point=True)
    assert in_order(state, [3, 4, 2]) == [[0, 1, 2], [9] * 4, [9] * 2]
    assert [values.shape[2] for values in state.scores] == [3, 4, 2]


def test_scores_of_curves_during_a_training_are_not_kept() -> None:
    state = RunState(scores=[torch.zeros(2, 1, 3)])
    assert in_order(state, [3]) == [[9] * 3]
    state.at_safe_point = True
    assert in_order(state, [3]) == [[0] * 3]
    assert len(state.scores) == 1


def test_progress_is_reported_about_a_hundred_times_and_at_the_end() -> None:
    def work() -> Records[None]:
        yield Log("info", "begins")
        for _ in range(1000):
            state.count(3)
            yield None

    def progress(state: RunState) -> Iterator[Progress]:
        for record in with_progress(work(), state, lambda: 3000):
            if isinstance(record, Progress):
                yield record

    state = RunState()
    found = list(progress(state))
    assert state.masks == 3000
    first = [(3, 3000), (6, 3000), (12, 3000), (24, 3000)]
    hundred = [(30 * i, 3000) for i in range(1, 101)]
    assert [(one.done, one.total) for one in found] == [*first, *hundred]


def told(scored: list[int], totals: list[int], masks: int = 0) -> list[tuple[int, int]]:
    """Done and total of each progress record; the total is the next one whenever it is asked."""
    left, state = iter(totals), RunState(masks=masks)

    def records() -> Records[None]:
        for count in scored:
            state.count(count)
            yield None

    found = with_progress(records(), state, lambda: next(left))
    return [(one.done, one.total) for one in found if isinstance(one, Progress)]


def test_short_and_long_runs_report_progress_to_the_end() -> None:
    """A hundredth of 205 masks is two: an odd total ends between two of them."""
    assert told([1] * 4, [4] * 4) == [(1, 4), (2, 4), (3, 4), (4, 4)]
    found = told([1] * 205, [205] * 205)
    assert found == [(1, 205), *((2 * i, 205) for i in range(1, 103)), (205, 205)]
    assert told([3] * 3, [300] * 3) == [(3, 300), (6, 300), (9, 300)]
    assert told([1] * 6, [300] * 6) == [(1, 300), (2, 300), (3, 300), (6, 300)]


def test_records_between_masks_report_no_progress() -> None:
    state = RunState(stage=Stage("training", 1, 9, "epochs"))
    log = Log("info", "here")

    def records() -> Records[None]:
        state.count(2)
        yield from (None, log)
        state.count(2)
        yield from (None, None)

    found = list(with_progress(records(), state, lambda: 4))
    first, last = (Progress(done, 4, "masks", state.stage) for done in (2, 4))
    assert found == [None, first, log, None, last, None]


def test_more_masks_than_expected_are_all_masks() -> None:
    assert told([2] * 3, [4] * 3) == [(2, 4), (4, 4), (6, 6)]
    assert told([100, 202, 1, 2], [304] * 4)[-1] == (305, 305)


def test_a_new_total_is_reported_at_once() -> None:
    """The expected end depends on it, and a target is planned after its pilot. Each part
    is a part of the total at that time."""
    found = told([2] * 6, [10_000, 10_000, 500, 500, 2000, 2000], masks=10)
    assert found == [(12, 10_000), (14, 10_000), (16, 500), (20, 2000)]


def test_masks_left_out_of_evaluations() -> None:
    """The second and those to come are expected to be as the latest, until they have a plan."""
    state = RunState()
    assert state.left_out(3) == 0
    first = state.plan(100)
    assert state.plans == [MaskPlan(100, 100)]
    first.planned = 70
    assert first.unused == 30
    assert state.left_out(0) == state.left_out(1) == 30
    assert state.left_out(3) == 30 + 2 * 30
    second = state.plan(50)
    assert second == MaskPlan(50, 20)
    second.planned = 45
    assert state.left_out(3) == 30 + 5 + 5


def test_saved_scores_are_returned_in_their_order() -> None:
    """Rounds that end before the saved scores do leave the rest to the next round."""
    scores = torch.split(torch.arange(20.0).view(2, 1, 10), [2, 3, 5], dim=2)
    state = RunState(scores=[*scores], at_safe_point=True)
    assert in_order(state, [2]) == [[0, 1]]
    assert in_order(state, [3]) == [[2, 3, 4]]
    assert in_order(state, [5, 1]) == [[5, 6, 7, 8, 9], [9]]
    assert len(state.scores) == 4
