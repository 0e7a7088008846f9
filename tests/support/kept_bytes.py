"""The bytes that each user keeps, counted from the tables."""

import json
from collections import Counter

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.datasets.models import CONTENTS, Dataset
from service.experiments.models import (
    Artifact,
    Block,
    Checkpoint,
    Event,
    Experiment,
    Metric,
    Series,
)
from service.queue import quota
from service.queue.sizes import EXPERIMENT_BYTES
from service.submission.idempotency import size_of
from service.submission.models import KeptRequest
from service.sweeps.models import Sweep
from service.vocabulary import TERMINAL


def bytes_agree(session: Session) -> bool:
    """Compare the bytes that are counted for each user with those in the tables."""
    kept = {owner_id: total for owner_id, total in quota.kept_by_user(session).items() if total}
    return kept == bytes_in_tables(session)


def bytes_in_tables(session: Session) -> dict[int, int]:
    """Count the bytes of each user in Python, row by row, without records of runs that are not
    measured yet."""
    owners: dict[str, int] = {}
    found: Counter[int] = Counter()
    running = []
    for one in session.scalars(select(Experiment)):
        owners[one.id] = one.owner_id
        running += [one.id] if one.record_bytes is None else []
        found[one.owner_id] += EXPERIMENT_BYTES + len(json.dumps(one.spec))
        found[one.owner_id] += _bytes_of(one.name, one.note, *one.tags)
        found[one.owner_id] += len(json.dumps(one.comes_after)) if one.comes_after else 0
    for request in session.scalars(select(KeptRequest)):
        found[request.owner_id] += size_of(request.idempotency_key, request.made)
    for sweep in session.scalars(select(Sweep)):
        found[sweep.owner_id] += len(json.dumps(sweep.spec)) + len(json.dumps(sweep.comes_after))
        found[sweep.owner_id] += _bytes_of(sweep.name, sweep.note, *sweep.tags)
    for dataset in session.scalars(select(Dataset)):
        found[dataset.owner_id] += dataset.bytes
        for part in (getattr(dataset, name) for name in CONTENTS):
            found[dataset.owner_id] += len(json.dumps(part)) if part is not None else 0
    for metric in session.scalars(select(Metric).where(Metric.experiment_id.not_in(running))):
        texts = (metric.name, metric.labels, metric.reason or "")
        found[owners[metric.experiment_id]] += 16 + sum(map(len, texts))
    logs = select(Event).where(Event.kind == "log", Event.experiment_id.not_in(running))
    for log in session.scalars(logs):
        found[owners[log.experiment_id]] += len(json.dumps(log.data))
    artifacts = select(Artifact).where(Artifact.experiment_id.not_in(running))
    for artifact in session.scalars(artifacts):
        found[owners[artifact.experiment_id]] += artifact.bytes or 0
    saved = select(Checkpoint, Experiment.status).join(
        Experiment, Experiment.id == Checkpoint.experiment_id
    )
    for checkpoint, status in session.execute(saved):
        if status not in TERMINAL:
            found[owners[checkpoint.experiment_id]] += checkpoint.bytes or 0
    blocks = select(Block, Series.experiment_id).join(Series, Series.id == Block.series_id)
    for block, experiment_id in session.execute(blocks.where(Series.experiment_id.not_in(running))):
        columns = (block.seq or b"", block.x, block.value, block.std_err, block.n, block.reason)
        found[owners[experiment_id]] += sum(map(len, columns))
    return dict(+found)


def _bytes_of(*texts: str | None) -> int:
    return len("".join(text or "" for text in texts).encode())
