"""What a run remembers: scores, and how far it is."""

from collections.abc import Iterator

import torch

from mptcore.protocol.records import Log, Progress
from mptcore.runtime.session import ScoreCache, Session, Step, Work, with_progress


def test_scores_of_batches_of_another_size_are_computed_again() -> None:
    """They were cut for a machine with other memory; what came before them stays."""
    cache = ScoreCache.of(torch.arange(8.0).view(1, 1, 8), [3, 3, 2])
    computed = torch.full((1, 1, 4), 9.0)
    assert cache.holds_next(3)
    assert cache.get_or_compute(lambda: computed, 3).flatten().tolist() == [0, 1, 2]
    assert not cache.holds_next(4)
    assert cache.get_or_compute(lambda: computed, 4) is computed
    assert [values.shape[2] for values in cache.values] == [3, 4]
    assert not cache.holds_next(2)


def test_progress_is_told_about_a_hundred_times_and_at_the_end() -> None:
    def work() -> Work[None]:
        yield Step(Log("info", "begins"))
        for _ in range(1000):
            yield Step(masks=3)

    def progress(session: Session) -> Iterator[Progress]:
        for record in with_progress(work(), session, lambda: 3000):
            if isinstance(record, Progress):
                yield record

    session = Session()
    found = list(progress(session))
    assert session.masks == 3000
    assert [(one.done, one.total) for one in found] == [(30 * i, 3000) for i in range(1, 101)]
