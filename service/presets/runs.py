"""The newest experiments that ran a preset's specs: found by tag, or by an equal spec."""

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any

from sqlalchemy import ColumnElement, Select, Text, cast, func, select
from sqlalchemy.orm import Session, defer, joinedload

from mptcore.presets import PRESETS
from mptcore.specs import ExperimentSpec, stored_spec_if_known
from service.accounts.users import Caller
from service.datasets.sizes import Uploads
from service.db.visibility import readable, reader
from service.experiments.cache import CacheKeys
from service.experiments.inputs import Inputs
from service.experiments.listing import Wanted, load_texts, page_of
from service.experiments.models import Experiment
from service.experiments.references import ReferencedInputs
from service.settings import Settings
from service.vocabulary import UNFINISHED, Status

WITHOUT_RESULT = (Status.FAILED, Status.CANCELLED, Status.PAUSED)
"""Statuses of experiments that come after all others."""
MAX_TAGGED = 500
"""Maximum number of tagged experiments that are examined, newest first."""
SPECS_AT_ONCE = 50
"""Maximum number of specs in memory at the same time. A spec may be large."""


def tags_of(preset: str, index: int) -> tuple[str, str]:
    """Tags of an experiment that runs the spec at this place of a preset."""
    return f"preset:{preset}", f"part:{index + 1}"


def runs_of_presets(
    session: Session, settings: Settings, user: Caller
) -> Mapping[str, list[Experiment | None]]:
    """Return, for each preset, the experiment that ran each of its specs: the caller's newest one
    that has or may yet have a result, else the caller's newest, else the newest succeeded one of
    other users that the caller may read. One with the tag of another preset with an equal spec is
    the last choice."""
    specs = [spec for preset in PRESETS.values() for spec in preset.specs]
    inputs = ReferencedInputs.of(session, Uploads(session, user.id), specs)
    cache_keys = CacheKeys(inputs, Inputs(settings))
    documents = [spec.model_dump(mode="json") for spec in specs]
    keys = [cache_keys.key(*pair) for pair in zip(specs, documents, strict=True)]
    longest = max(len(json.dumps(one)) for one in documents)
    tags = [tags_of(name, 0)[0] for name in PRESETS]
    tagged = page_of(session, user.id, Wanted(tag=tags), limit=MAX_TAGGED).items
    tagged = load_texts(session, tagged)
    computed = _computed(session, [one.id for one in tagged], 2 * longest)
    same = _same(session, user, {key for key in keys if key is not None})
    key_of_next = iter(keys)

    def rank(one: Experiment, wanted: Collection[str]) -> tuple[bool, bool, bool, str]:
        of_another = any(tag.startswith("preset:") for tag in {*one.tags} - {*wanted})
        return one.owner_id == user.id, one.status not in WITHOUT_RESULT, not of_another, one.id

    def newest(preset: str, index: int, spec: ExperimentSpec) -> Experiment | None:
        digest, wanted = _digest(spec), set(tags_of(preset, index))
        found = [
            one for one in tagged if computed.get(one.id) == digest and wanted <= set(one.tags)
        ]
        found += same.get(next(key_of_next), ())
        return max(found, key=partial(rank, wanted=wanted), default=None)

    return {
        name: [newest(name, i, spec) for i, spec in enumerate(preset.specs)]
        for name, preset in PRESETS.items()
    }


def status_of(runs: Sequence[Experiment | None]) -> str:
    """Return the status of a preset by the experiments that ran its specs."""
    statuses = [None if one is None else Status(one.status) for one in runs]
    if not any(statuses):
        return "not run"
    if all(status == Status.SUCCEEDED for status in statuses):
        return "succeeded"
    return "running" if {*statuses} & {*UNFINISHED} else "incomplete"


def _computed(session: Session, ids: Sequence[str], most: int) -> Mapping[str, str]:
    """Return a digest of what each of these experiments computes. Each spec is read once, because
    an experiment may have the tags of many parts. Specs of more than `most` characters are too long
    for one of a preset, and are not read: they may be 200 KB each."""
    may_be = func.length(cast(Experiment.spec, Text)) <= most
    found: dict[str, str] = {}
    for first in range(0, len(ids), SPECS_AT_ONCE):
        query = select(Experiment.id, Experiment.spec)
        query = query.where(Experiment.id.in_(ids[first : first + SPECS_AT_ONCE]), may_be)
        specs = ((row.id, stored_spec_if_known(row.spec)) for row in session.execute(query))
        found |= {id: _digest(spec) for id, spec in specs if spec is not None}
    return found


def _digest(spec: ExperimentSpec) -> str:
    """Return a digest of a spec without the settings of the computation."""
    return hashlib.sha256(spec.model_dump_json(exclude={"compute"}).encode()).hexdigest()


def ran(experiment: Experiment, spec: ExperimentSpec) -> bool:
    """Return whether an experiment ran this spec, on any device and with any settings of the
    computation."""
    found = stored_spec_if_known(experiment.spec)
    return found is not None and found.model_copy(update={"compute": spec.compute}) == spec


def _same(
    session: Session, user: Caller, keys: Collection[str]
) -> Mapping[str | None, list[Experiment]]:
    """Return the experiments that may be chosen of those with these keys of the result cache, by
    key: the caller's newest with a result, or else without, and the newest succeeded one of all. A
    user may have a million with the same key, which are not read."""
    has_result = Experiment.status.not_in(WITHOUT_RESULT)
    mine = _first(keys, Experiment.owner_id == user.id, has_result.desc())
    succeeded = _first(keys, Experiment.status == Status.SUCCEEDED)
    query = select(Experiment).where(Experiment.id.in_(mine.union_all(succeeded)))
    query = query.options(joinedload(Experiment.owner), defer(Experiment.spec, raiseload=True))
    found: dict[str | None, list[Experiment]] = {}
    for one in session.scalars(query, reader(user.id)):
        found.setdefault(one.cache_key, []).append(one)
    return found


def _first(keys: Collection[str], which: ColumnElement[bool], *order: Any) -> Select[str]:
    """Select the first experiment of each key in this order. Of equal ones the newest is first."""
    place = func.row_number().over(
        partition_by=Experiment.cache_key, order_by=(*order, Experiment.id.desc())
    )
    query = select(Experiment.id, place.label("place"))
    placed = query.where(Experiment.cache_key.in_(keys), which, readable(Experiment)).subquery()
    return select(placed.c.id).where(placed.c.place == 1)
