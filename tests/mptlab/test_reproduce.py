"""`mpt reproduce`: presets of a service become a report."""

import base64
import copy
import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from mptcore.presets import PRESETS
from mptcore.specs import parse_spec
from mptlab import Client, Refused, report, reproduce
from mptlab.errors import Json
from mptlab.reproduce import Outcome
from mptlab.tables import HALF_WIDTH
from tests.support.commands import mpt_here

DESCRIPTION = {"title": "Fig. 9", "statement": "It rises.", "specs": [{"model": {}}]}


@pytest.mark.usefixtures("forked_service")
def test_without_a_service_one_runs_until_the_report_is_written(tmp_path: Path) -> None:
    folder = tmp_path / "report"
    (tmp_path / "models").mkdir()
    environment = {
        "MPT_STORE": str(tmp_path / "store"),
        "MPT_MODELS_DIR": str(tmp_path / "models"),
        "HF_HUB_OFFLINE": "1",
    }
    code, output, error = mpt_here(
        environment, "reproduce", "fig4-left", "table2-cola", "--quick", "--report", str(folder)
    )
    assert code == 0
    assert "expected: unknown time" in error
    fig4, cola, counts, page = output.splitlines()
    assert fig4.split() == ["fig4-left", "agrees"]
    assert cola.startswith("table2-cola")
    assert "did not run: " in cola
    assert "bert-base-uncased" in cola
    assert counts == "1 agrees, 1 did not run"
    assert page == f"report: {folder / 'report.html'}"
    text = (folder / "report.md").read_text()
    assert "| area − LML | 0 | " in text
    assert "(fig4-left.svg)" in text
    assert (folder / "fig4-left.svg").read_text().lstrip().startswith("<?xml")
    html = (folder / "report.html").read_text()
    (picture,) = re.findall(r'<img src="data:image/svg\+xml;base64,([^"]+)"', html)
    assert base64.b64decode(picture) == (folder / "fig4-left.svg").read_bytes()


def test_results_that_exist_are_used(
    environment: dict[str, str], client: Client, tmp_path: Path
) -> None:
    (first,) = client.run_preset("fig4-left")
    first.wait()
    before = len(client.experiments.list(None))
    words = ("reproduce", "fig4-left", "--report", str(tmp_path), "--json")
    code, output, error = mpt_here(environment, *words)
    assert (code, error.splitlines().count("everything is computed already")) == (0, 1), error
    (told,) = json.loads(output)
    assert (told["status"], told["experiments"]) == ("agrees", [first.id])
    assert told["seconds"] > 0
    assert len(client.experiments.list(None)) == before
    text = (tmp_path / "report.md").read_text()
    assert f"`{first.id}`" in text
    assert "they took" in text


class Batches:
    """Replaces a service with runs of presets in some status. New experiments are numbered."""

    def __init__(self, **runs: Sequence[tuple[str, str] | None]) -> None:
        self._runs = runs
        self.names: list[str] = []
        self.tags: list[Sequence[str]] = []

    def preset_runs(self) -> list[Json]:
        return [
            {"name": name, "runs": [one and {"id": one[0], "status": one[1]} for one in runs]}
            for name, runs in self._runs.items()
        ]

    def batch(self, submissions: Iterable[Json]) -> list[str]:
        before = len(self.names)
        for one in submissions:
            self.names.append(one["name"])
            self.tags.append(one["tags"])
        return [f"new {i}" for i in range(before, len(self.names))]


def ppca(seed: int) -> Json:
    return {
        "model": {"family": "ppca"},
        "data": {"source": "ppca"},
        "evaluate": {},
        "seeds": [seed],
    }


def preset_of(name: str, *specs: Json) -> Json:
    return {"name": name, "specs": [*specs], "tags": [[name, str(i)] for i in range(len(specs))]}


@pytest.mark.parametrize(
    ("status", "used"),
    [("succeeded", "old"), ("running", "old"), ("paused", "new 0"), ("failed", "new 0")],
)
def test_runs_that_may_never_end_are_not_waited_for(status: str, used: str) -> None:
    service = Batches(a=[("old", status)])
    (outcome,) = reproduce.submitted(cast(Client, service), [preset_of("a", ppca(1))], quick=False)
    assert outcome.ids == [used]


def test_only_what_is_missing_is_queued_and_presets_share_it() -> None:
    presets = [preset_of("a", ppca(1), ppca(2), ppca(3)), preset_of("b", ppca(2))]
    service = Batches(a=[("first", "succeeded"), None, ("third", "queued")], b=[None])
    outcomes = reproduce.submitted(cast(Client, service), presets, quick=False)
    assert [outcome.ids for outcome in outcomes] == [["first", "new 0", "third"], ["new 0"]]
    assert (service.names, service.tags) == (["a 2/3"], [["a", "1"]])


@pytest.mark.parametrize("quick", [False, True])
def test_a_short_form_uses_no_long_runs(quick: bool) -> None:
    """Nor does a whole preset use the short form of another one."""
    vae = {**ppca(1), "model": {"family": "masked_lm"}}
    presets = [preset_of(name, vae, ppca(2)) for name in ("a", "b")]
    service = Batches(a=[("old", "succeeded"), None], b=[("one", "succeeded"), ("two", "queued")])
    first, second = reproduce.submitted(cast(Client, service), presets, quick)
    assert first.ids == (["new 0", "new 1"] if quick else ["old", "new 0"])
    assert first.is_short == quick
    assert (second.ids, second.is_short) == (["one", "two"], False)


@pytest.mark.parametrize("name", [name for name in PRESETS if not name.endswith("-blocks")])
def test_a_short_form_is_a_spec_that_is_small(name: str) -> None:
    specs = [spec.model_dump(mode="json") for spec in PRESETS[name].specs]
    short = reproduce._shortened(copy.deepcopy(specs))
    families = {spec["model"]["family"] for spec in specs}
    is_whole = not families & set(reproduce.SHORT) or name == "swapped-atoms"
    assert (short == specs) == is_whole
    for spec in short:
        parse_spec(json.dumps(spec).encode())
        if not is_whole:
            train, evaluate = spec["train"] or {}, spec["evaluate"]
            assert spec["data"]["n"] <= 200 or spec["data"]["source"] == "digits"
            assert max(train.get("epochs", 0), train.get("steps", 0)) <= 20
            assert len(spec["seeds"]) <= 2
            if spec["model"]["family"] == "masked_lm":
                assert not evaluate["orders"] or evaluate["sequences"] <= 8
                assert not evaluate["target_std_err"] or evaluate["max_masks"] <= 100


class Service:
    """Replaces a service in which all experiments with a checkpoint fail."""

    def __init__(self) -> None:
        self.waited: list[str] = []
        self.cancelled: list[str] = []

    def wait(self, one: str, on_change: Any) -> Json:
        self.waited.append(one)
        failure = {"message": "the checkpoint bert cannot be used"}
        return {"status": "failed", "failure": failure, "attempts": []}

    def cancel(self, one: str) -> None:
        self.cancelled.append(one)
        raise Refused({"detail": "it has ended"})


def test_after_a_missing_checkpoint_others_that_need_it_are_cancelled() -> None:
    specs = [{"model": {"checkpoint": "bert"}}] * 2
    outcomes = [
        Outcome({"name": "a", "specs": specs}, ids=["1", "2"]),
        Outcome({"name": "b", "specs": specs}, ids=["3", "4"]),
        Outcome({"name": "c", "specs": [{"model": {"checkpoint": "other"}}]}, ids=["5"]),
    ]
    service = Service()
    reproduce.finish(cast(Client, service), outcomes, lambda _: None)
    assert (service.waited, service.cancelled) == (["1", "5"], ["2", "3", "4"])
    for outcome in outcomes:
        assert outcome.status == "did not run"
        assert outcome.failure == "the checkpoint bert cannot be used"


def test_a_failure_does_not_cancel_what_a_later_preset_uses() -> None:
    specs: list[Json] = [{"model": {}}] * 3
    outcomes = [
        Outcome({"name": "a", "specs": specs}, ids=["1", "2", "3"]),
        Outcome({"name": "b", "specs": specs[:1]}, ids=["3"]),
    ]
    service = Service()
    reproduce.finish(cast(Client, service), outcomes, lambda _: None)
    assert (service.waited, service.cancelled) == (["1", "3"], ["2"])


def judged(verdict: str) -> Outcome:
    """A preset with a verdict."""
    figure = {"what": "rise", "published": 1.0, "measured": 2.5, "half_width": 0.25, "low": 1.0,
              "high": None, "outcome": verdict, "power": 0.97}  # fmt: skip
    result = {"verdict": verdict, "missing": None, "comparisons": [figure]}
    return Outcome({**DESCRIPTION, "name": f"x-{verdict}"}, verdict=result)


def test_a_report_says_what_differs_and_what_ran_in_short(tmp_path: Path) -> None:
    short = Outcome({**DESCRIPTION, "name": "y"}, is_short=True)
    report.write([judged("differs"), judged("agrees"), judged("agrees"), short], tmp_path)
    text = (tmp_path / "report.md").read_text()
    assert "**2 agrees, 1 differs, 1 ran in short.**" in text
    assert "| rise | 1 | 2.50 ± 0.25 | 1 | – | differs | 97% |" in text
    assert text.count(HALF_WIDTH) == 3
    assert "A short form ran" in text


def test_a_preset_without_curves_and_figures_has_no_picture(tmp_path: Path) -> None:
    outcome = judged("agrees")
    outcome.curves = [{"series": []}]
    report.write([outcome], tmp_path)
    assert [path.name for path in tmp_path.rglob("*.svg")] == ["x-agrees.svg"]
    assert outcome.verdict is not None
    outcome.verdict["comparisons"] = []
    (tmp_path / "empty").mkdir()
    report.write([outcome], tmp_path / "empty")
    assert not [*(tmp_path / "empty").rglob("*.svg")]


def test_the_paper_comes_before_claims_of_our_own(tmp_path: Path) -> None:
    own, published = judged("agrees"), judged("differs")
    own.preset |= {"title": "Which rate? 15 %", "name": "unbiased-rate"}
    published.preset["name"] = "fig3-vae-mnist"
    report.write([own, published], tmp_path)
    text = (tmp_path / "report.md").read_text()
    for first, second in (
        ("**The paper**", "**Questions that the paper leaves open**"),
        ("## Fig. 9", "## Which rate? 15 %"),
        ("*Published:* It rises.", "*Claim:* It rises."),
        ("| | published |", "| | claimed |"),
    ):
        assert text.index(first) < text.index(second)
    assert "docs/vaes.md" in text
    html = (tmp_path / "report.html").read_text()
    links = re.findall(r'href="#([^"]+)"', html)
    assert "which-rate-15-" in links
    for link in links:
        assert f'<h2 id="{link}">' in html


def test_the_time_of_a_preset_counts_all_attempts() -> None:
    times = [("00:00:00", "00:01:00"), ("10:00:00", "10:00:02"), ("10:00:03", None)]
    attempts = [
        {"started_at": f"2026-01-01T{start}Z", "ended_at": end and f"2026-01-01T{end}Z"}
        for start, end in times
    ]
    assert Outcome(DESCRIPTION, ended=[{"attempts": attempts}] * 2).seconds == 124
