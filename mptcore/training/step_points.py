"""Points for one training step on vectors. They report only errors that are known."""

from mptcore.protocol.records import Labels, Point, SeriesName

ONE_STEP = "the masks of one step"
ONE_BATCH = "the observations of one step"


def score_of_step(
    series: SeriesName, epoch: int, value: float, masks: int, labels: Labels
) -> Point:
    """Return a point that is computed from the score of a step's masks."""
    return Point(series, epoch, value, None, masks, labels, ONE_STEP)


def lml_loss(epoch: int, loss: float, batch_size: int | None, labels: Labels) -> Point:
    """Return the point of −LML at a step. It is exact if the step uses all observations."""
    if batch_size is None:
        return Point("loss", epoch, loss, 0.0, 0, labels)
    return Point("loss", epoch, loss, None, batch_size, labels, ONE_BATCH)
