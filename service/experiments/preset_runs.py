"""The newest experiments that ran a preset's specs: found by tag, or by an equal spec."""

from collections.abc import Collection, Iterator, Mapping, Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session, joinedload

from mptcore.presets import PRESETS
from mptcore.specs import ExperimentSpec, stored_spec
from service.accounts.users import Caller
from service.experiments.cache import CacheKeys
from service.experiments.inputs import Inputs
from service.experiments.listing import Wanted, page_of
from service.experiments.references import ReferencedInputs
from service.settings import Settings
from service.tables.experiments import Experiment, Status
from service.tables.visibility import readable, reader

MAX_TAGGED = 500
"""Maximum number of tagged experiments that are examined, newest first."""


def tags_of(preset: str, index: int) -> tuple[str, str]:
    """Tags of an experiment that runs the spec at this place of a preset. `run_preset` of the
    client and the page set them."""
    return f"preset:{preset}", f"part:{index + 1}"


def runs_of_presets(
    session: Session, settings: Settings, user: Caller
) -> Mapping[str, list[Experiment | None]]:
    """For each preset, the experiment that ran each of its specs: the caller's newest one, else the
    newest of others that has succeeded and that the caller may read."""
    specs = [spec for preset in PRESETS.values() for spec in preset.specs]
    cache_keys = CacheKeys(ReferencedInputs.of(session, user.id, specs), Inputs(settings))
    keys = [cache_keys.key(spec, spec.model_dump(mode="json")) for spec in specs]
    tags = [tags_of(name, 0)[0] for name in PRESETS]
    tagged = page_of(session, user.id, Wanted(tag=tags), limit=MAX_TAGGED, with_spec=True).items
    same = _same(session, user, {key for key in keys if key is not None})
    key_of_next = iter(keys)
    return {
        name: [
            _newest(user, spec, [*_tagged(tagged, name, i), *same.get(next(key_of_next), ())])
            for i, spec in enumerate(preset.specs)
        ]
        for name, preset in PRESETS.items()
    }


def ran(experiment: Experiment, spec: ExperimentSpec) -> bool:
    """Return whether an experiment ran this spec, on any device and with any settings of the
    computation."""
    found = stored_spec(experiment.spec)
    return found.model_copy(update={"compute": spec.compute}) == spec


def _tagged(found: Sequence[Experiment], preset: str, index: int) -> Iterator[Experiment]:
    wanted = set(tags_of(preset, index))
    return (one for one in found if wanted <= set(one.tags))


def _same(
    session: Session, user: Caller, keys: Collection[str]
) -> Mapping[str | None, list[Experiment]]:
    """Return the experiments with these keys of the result cache, by key."""
    mine = Experiment.owner_id == user.id
    query = (
        select(Experiment)
        .where(Experiment.cache_key.in_(keys), readable(Experiment))
        .where(mine | (Experiment.status == Status.SUCCEEDED))
        .options(joinedload(Experiment.owner))
    )
    found: dict[str | None, list[Experiment]] = {}
    for one in session.scalars(query, reader(user.id)):
        found.setdefault(one.cache_key, []).append(one)
    return found


def _newest(user: Caller, spec: ExperimentSpec, found: Sequence[Experiment]) -> Experiment | None:
    newest_first = sorted(found, key=lambda one: (one.owner_id == user.id, one.id), reverse=True)
    return next((one for one in newest_first if ran(one, spec)), None)
