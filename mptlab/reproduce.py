"""Run the presets of a service, and collect what a report on them needs."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from mptlab.client import Client
from mptlab.errors import Json, Refused
from mptlab.specs import changed, names_of_parts

SHORT: Mapping[str, Mapping[str, Any]] = {
    "linear_vae": {
        "data.n": 100,
        "train.epochs": 20,
        "evaluate.masks": {"schedule": "fixed", "rate": 0.5, "per_size": 2},
        "evaluate.lml.nodes": 40,
        "seeds": [4],
    },
    "vae": {
        "model.latent_dim": 2,
        "model.network.widths": [32],
        "baseline.latent_dim": 2,
        "data.n": 50,
        "train.batch_size": 20,
        "train.epochs": 2,
        "train.evaluate_every": 2,
        "evaluate.masks.per_size": 2,
        "seeds": [4],
    },
    "masked_lm": {
        "data.n": 20,
        "evaluate.masks": {"schedule": "rates", "rates": [0.15, 0.5, 0.9], "per_size": 2},
    },
}
"""Changes of a spec that make a short form of it, by the family of its model. Other families are
fast, and run whole."""
SHORT_SEEDS = 2
SHORT_TEXTS = 20
"""Number of texts of a file that are scored one by one; the two of a row stay together."""
SHORT_TRAINING = {"train.steps": 20, "train.warmup_steps": 2, "train.evaluate_every": 20}
"""Further changes of a masked language model that is trained."""
USELESS = ("failed", "cancelled", "paused")
"""Statuses of experiments that are not waited for. New ones are queued instead."""


@dataclass
class Outcome:
    """A preset and the state of its experiments."""

    preset: Json
    is_short: bool = False
    """True if a short form ran. Its results have no verdict."""
    ids: list[str] = field(default_factory=list)
    ended: list[Json] = field(default_factory=list)
    """Documents of the ended experiments, in the order of the specs."""
    curves: list[Json] = field(default_factory=list)
    """Series of the experiments, each list in its order."""
    verdict: Json | None = None
    failure: str | None = None
    """Reason why there are no results."""

    @property
    def name(self) -> str:
        name: str = self.preset["name"]
        return name

    @property
    def status(self) -> str:
        """The verdict, or `did not run`, or `ran in short`."""
        if self.failure is not None:
            return "did not run"
        return "ran in short" if self.verdict is None else self.verdict["verdict"]

    @property
    def seconds(self) -> float:
        """Time that the experiments took, all together."""
        return sum(map(_seconds, self.ended))

    def summary(self) -> Json:
        """Return the outcome for a program, without curves."""
        return {
            "preset": self.name,
            "status": self.status,
            "failure": self.failure,
            "experiments": self.ids,
            "verdict": self.verdict,
            "seconds": self.seconds,
        }


def chosen(client: Client, names: Sequence[str]) -> list[Json]:
    """Return the presets of these names, or all. Raises Refused for an unknown name."""
    return [client.preset(name) for name in names] if names else client.presets()


def submitted(client: Client, presets: Iterable[Json], quick: bool) -> list[Outcome]:
    """Queue the experiments of presets. Experiments of the same specs that are computed, waiting or
    running are used instead, also those of another preset. With `quick`, slow ones are queued in a
    short form."""
    runs = {preset["name"]: preset["runs"] for preset in client.preset_runs()}
    queued: dict[str, str] = {}
    return [_submitted(client, preset, runs[preset["name"]], quick, queued) for preset in presets]


def _submitted(
    client: Client, preset: Json, runs: Sequence[Json | None], quick: bool, queued: dict[str, str]
) -> Outcome:
    """Queue what is missing of a preset. `queued` has the ids of specs that were queued before, and
    gets these."""
    outcome = Outcome(preset)
    usable = [run["id"] if run and run["status"] not in USELESS else None for run in runs]
    specs = preset["specs"]
    if quick and not all(usable):
        specs = _shortened(specs)
        outcome.is_short = specs != preset["specs"]
    if outcome.is_short:
        usable = [None] * len(specs)
    tags = [[] for _ in specs] if outcome.is_short else preset["tags"]
    name = f"{outcome.name}, short" if outcome.is_short else outcome.name
    names = names_of_parts(name, len(specs))
    texts = [json.dumps(spec, sort_keys=True) for spec in specs]
    known = [run or queued.get(text) for run, text in zip(usable, texts, strict=True)]
    new = [
        {"spec": spec, "name": part, "tags": part_tags}
        for spec, part, part_tags, run in zip(specs, names, tags, known, strict=True)
        if run is None
    ]
    try:
        answers = iter(client.batch(new) if new else ())
    except Refused as refused:
        problems = [problem["detail"] for problem in refused.errors[:3]]
        outcome.failure = "; ".join(problems) or str(refused)
        return outcome
    outcome.ids = [run or next(answers) for run in known]
    queued |= dict(zip(texts, outcome.ids, strict=True))
    return outcome


def _shortened(specs: Sequence[Json]) -> Sequence[Json]:
    """Return the short forms of a preset's specs. If one is shorter, no verdict is possible, and
    the others get few seeds."""
    short = [_short(spec) for spec in specs]
    if short == specs:
        return specs
    return [{**spec, "seeds": spec["seeds"][:SHORT_SEEDS]} for spec in short]


def _short(spec: Json) -> Json:
    if (spec.get("evaluate") or {}).get("texts"):
        return changed(spec, {"data.n": SHORT_TEXTS}) if spec["data"].get("file") else spec
    changes = dict(SHORT.get(spec["model"]["family"], {}))
    if spec.get("baseline") is None:
        changes.pop("baseline.latent_dim", None)
    if spec["evaluate"].get("lml") is None:
        changes.pop("evaluate.lml.nodes", None)
    if spec["data"]["source"] == "digits":
        changes.pop("data.n", None)  # these data have one size
    if spec["model"]["family"] != "masked_lm":
        return changed(spec, changes)
    if spec["evaluate"].get("orders"):
        changes["evaluate.sequences"] = 8
    if spec["evaluate"].get("target_std_err"):
        changes["evaluate.max_masks"] = 100
    if spec.get("train"):
        changes |= {**SHORT_TRAINING, "data.n": 200}
    return changed(spec, changes)


def expected_s(client: Client, outcomes: Iterable[Outcome]) -> tuple[float, float, int]:
    """Return low and high estimates of the time in seconds that the experiments still need one
    after the other, and the number of experiments without an estimate."""
    low = high = 0.0
    unknown = 0
    ids = dict.fromkeys(run for outcome in outcomes for run in outcome.ids)
    for experiment in client.get_many(ids):
        if experiment["terminal"]:
            continue
        runtime = None
        with suppress(Refused):
            runtime = client.validate(experiment["spec"])["runtime"]
        if runtime is None:
            unknown += 1
        else:
            low, high = low + runtime["low_s"], high + runtime["high_s"]
    return low, high, unknown


def finish(client: Client, outcomes: Sequence[Outcome], show: Callable[[Json], object]) -> None:
    """Wait for the experiments, and read their results and verdicts. After a failure the preset's
    other experiments are cancelled, but for those that a later preset uses. Experiments that need
    the same checkpoint are cancelled too, because each may need a minute to find that it cannot be
    loaded."""
    missing: dict[str, str] = {}
    for place, outcome in enumerate(outcomes, 1):
        needed = {experiment_id for later in outcomes[place:] for experiment_id in later.ids}
        checkpoint = outcome.preset["specs"][0]["model"].get("checkpoint")
        outcome.failure = outcome.failure or missing.get(checkpoint)
        for experiment_id in outcome.ids:
            if outcome.failure is not None:
                if experiment_id not in needed:
                    with suppress(Refused):  # it may have ended
                        client.cancel(experiment_id)
                continue
            outcome.ended.append(client.wait(experiment_id, on_change=show))
            outcome.failure = _failure(outcome.ended[-1])
        if outcome.failure is None:
            outcome.curves = client.curves_of(outcome.ids)
            if not outcome.is_short:
                outcome.verdict = client.verdict(outcome.name, outcome.ids)
        elif checkpoint is not None and f"checkpoint {checkpoint}" in outcome.failure:
            missing[checkpoint] = outcome.failure


def _failure(ended: Json) -> str | None:
    if ended["status"] == "succeeded":
        return None
    return ended["failure"]["message"] if ended["failure"] else f"it was {ended['status']}"


def _seconds(experiment: Json) -> float:
    """Return the time of all attempts."""
    return sum(
        (_moment(attempt["ended_at"]) - _moment(attempt["started_at"])).total_seconds()
        for attempt in experiment["attempts"]
        if attempt["ended_at"]
    )


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text)
