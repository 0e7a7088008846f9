"""What one training step on vectors saw, as points that claim no error it does not know."""

from mptcore.protocol.records import Labels, Point, SeriesName

ONE_STEP = "the masks of one step"
ONE_BATCH = "the observations of one step"


def score_of_step(
    series: SeriesName, epoch: int, value: float, masks: int, labels: Labels
) -> Point:
    """A figure that follows from the score of a step's masks."""
    return Point(series, epoch, value, None, masks, labels, ONE_STEP)


def lml_loss(epoch: int, loss: float, batch_size: int | None, labels: Labels) -> Point:
    """−LML as a step sees it: exact where it sees all observations."""
    if batch_size is None:
        return Point("loss", epoch, loss, 0.0, 0, labels)
    return Point("loss", epoch, loss, None, batch_size, labels, ONE_BATCH)
