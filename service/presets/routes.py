"""Routes of the paper's experiments: specs, published results, and verdicts."""

import math
from collections.abc import Iterator, Sequence
from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Path, Query, Response
from sqlalchemy.orm import Session

from mptcore.presets import PRESETS, Comparison, Curve, Preset, Results
from mptcore.specs import ExperimentSpec, Problem
from mptcore.specs.parsing.suggestions import meant
from service.accounts.permissions import find_readable
from service.experiments.inputs import Inputs
from service.experiments.models import Experiment
from service.experiments.titles import titles_of
from service.experiments.views import metric_out, summary_out
from service.presets.runs import ran, runs_of_presets, status_of, tags_of
from service.presets.schemas import (
    ComparisonOut,
    PresetList,
    PresetOut,
    PresetRuns,
    PresetRunsList,
    VerdictOut,
)
from service.queue.position import queue_positions
from service.records import results
from service.records.curves import read_series
from service.refusals import ApiError, invalid
from service.vocabulary import Status
from service.web.dependencies import (
    DatabaseDep,
    QueueSnapshotsDep,
    Reader,
    SettingsDep,
    limited,
    reading,
)
from service.web.media_types import as_json
from service.web.route import StrictRoute

router = APIRouter(prefix="/v1/presets", tags=["presets"], route_class=StrictRoute)
custom = APIRouter(tags=["presets"], route_class=StrictRoute)

PresetName = Annotated[str, Path(max_length=64, description="Name of the preset.")]
ALL_POINTS = 10_000_000


@router.get("")
def list_presets(settings: SettingsDep, user: Reader) -> PresetList:
    """List the paper's tables and figures, and the checkpoints of this lab."""
    inputs = Inputs(settings)
    items = [_out(preset, inputs) for preset in PRESETS.values()]
    return PresetList(items=items, checkpoints=inputs.usable_checkpoints())


@custom.get("/v1/presets:runs", response_model=PresetRunsList)
def list_preset_runs(
    database: DatabaseDep, settings: SettingsDep, queue_snapshots: QueueSnapshotsDep, user: Reader
) -> Response:
    """Return for each spec of each preset your newest experiment that ran it, even if it was not
    submitted as a preset. One that failed, is paused or cancelled comes after all others. If you
    have none, return the newest that is shared with you and has succeeded."""
    with limited(database) as session:
        found = runs_of_presets(session, settings, user)
        made = {one.id: one for runs in found.values() for one in runs if one is not None}
        waiting = queue_positions(session, list(made.values()), queue_snapshots, user.id)
        titles = titles_of(session, list(made.values()), user)
        items = [
            PresetRuns(
                name=name,
                status=status_of(runs),
                runs=[
                    one and summary_out(one, waiting.get(one.id), titles[one.id], user)
                    for one in runs
                ],
            )
            for name, runs in found.items()
        ]
    return as_json(PresetRunsList(items=items))


@router.get("/{name}")
def get_preset(name: PresetName, settings: SettingsDep, user: Reader) -> PresetOut:
    return _out(_find(name), Inputs(settings))


@router.get("/{name}/verdict", response_model=VerdictOut)
def get_verdict(
    name: PresetName,
    experiment: Annotated[
        list[str],
        Query(
            max_length=100, description="Ids of experiments, in the order of the preset's specs."
        ),
    ],
    database: DatabaseDep,
    user: Reader,
) -> Response:
    """Return whether the results of experiments agree with the published ones. The caller must be
    allowed to read the experiments."""
    preset = _find(name)
    if len(experiment) != len(preset.specs):  # the rows may be large
        raise invalid([*_unfit(preset, [None] * len(experiment))])
    with reading(database) as session:
        found = [find_readable(session, user, Experiment, one) for one in experiment]
        if problems := [*_unfit(preset, found)]:
            raise invalid(problems)
        verdict = preset.verdict([_results(session, one) for one in found])
    comparisons = [_comparison_out(one) for one in verdict.comparisons]
    return as_json(
        VerdictOut(verdict=verdict.verdict, comparisons=comparisons, missing=verdict.missing)
    )


def _out(preset: Preset, inputs: Inputs) -> PresetOut:
    tags = [[*tags_of(preset.name, index)] for index in range(len(preset.specs))]
    missing = {}
    for spec in preset.specs:
        for problem in inputs.problems(spec):
            part, field = problem.pointer.strip("/").split("/")
            missing[str(getattr(getattr(spec, part), field))] = problem.detail
    return PresetOut.of(preset, tags=tags, missing=missing)


def _unfit(preset: Preset, found: Sequence[Experiment | None]) -> Iterator[Problem]:
    """Yield why experiments are not results of a preset."""
    wanted, given = len(preset.specs), len(found)
    if wanted != given:
        detail = f"{preset.name} has {wanted} specs: give {wanted} experiments that ran them, in "
        yield Problem("/query/experiment", f"{detail}their order, not {given}")
        return
    for i, (one, spec) in enumerate(zip(found, preset.specs, strict=True)):
        if why := _no_result_of(one, spec):
            yield Problem(f"/query/experiment/{i}", why)


def _no_result_of(experiment: Experiment | None, spec: ExperimentSpec) -> str | None:
    """Return why an experiment is not a result of a spec; None if it is."""
    if experiment is None:
        return "not one of your experiments and not shared with you"
    if experiment.status != Status.SUCCEEDED:
        return f"it is {experiment.status}: a verdict needs succeeded experiments"
    if not ran(experiment, spec):
        return "its spec is not the preset's at this position"
    return None


def _results(session: Session, experiment: Experiment | None) -> Results:
    assert experiment is not None
    series = read_series(session, experiment.id, max_points=ALL_POINTS)
    metrics = [metric_out(metric) for metric in results.metrics(session, experiment.id)]
    return Results(
        {
            (one.name, frozenset(one.labels.items())): Curve(
                one.x, one.value, one.std_err, [int(n) for n in one.n]
            )
            for one in series
        },
        {(m.name, frozenset(m.labels.items())): (m.value, m.std_err) for m in metrics},
    )


def _find(name: str) -> Preset:
    if name not in PRESETS:
        detail = f"there is no preset {name}: {meant(name, PRESETS)}there are {', '.join(PRESETS)}"
        raise ApiError(HTTPStatus.NOT_FOUND, "not_found", detail)
    return PRESETS[name]


def _comparison_out(one: Comparison) -> ComparisonOut:
    finite = {
        name: _finite(getattr(one, name)) for name in ("measured", "low", "high", "half_width")
    }
    return ComparisonOut.of(one, **finite)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
