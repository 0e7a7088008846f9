"""A quick look at a spec, and presets from their list to a verdict by one command."""

import json

from mptlab.specs import quick
from tests.support.commands import mpt_here
from tests.support.ppca_spec import ppca_spec


def test_a_quick_look_has_few_masks_and_one_seed() -> None:
    spec = {"model": {"family": "ppca"}, "seeds": [4, 5], "data": {"n": 9}}
    masks = {"schedule": "all", "per_size": 12}
    assert quick(spec) == {**spec, "seeds": [4], "evaluate": {"masks": masks}}
    few = {"masks": {"schedule": "fixed", "rate": 0.5, "per_size": 3}, "bias": True}
    assert quick({**spec, "evaluate": few})["evaluate"] == few
    whole = {"masks": {"schedule": "all", "design": "exhaustive"}}
    assert quick({**spec, "evaluate": whole})["evaluate"] == whole
    target = {"target_std_err": 0.1, "max_masks": 1000, "target": "score"}
    assert quick({**spec, "evaluate": target})["evaluate"] == {"masks": masks}
    text = {"model": {"family": "masked_lm"}}
    assert quick(text)["evaluate"] == {"masks": {"schedule": "rates", "per_size": 1}}


def test_a_quick_look_is_followed_and_tells_of_the_whole(environment: dict[str, str]) -> None:
    text = json.dumps(ppca_spec(seeds=[6, 7], evaluate__masks__per_size=400))
    code, shown, error = mpt_here(environment, "submit", "-", "--quick", text=text)
    assert code == 0, error
    assert error.startswith("mpt: a quick look with few masks and one seed; without --quick a run")
    (mpt,) = (line for line in shown.splitlines() if line.startswith("mpt "))
    assert mpt.split()[1] == "seed=6"
    assert "±" in mpt  # as many masks as an error needs


def test_one_command_runs_a_preset_to_its_verdict(environment: dict[str, str]) -> None:
    code, shown, error = mpt_here(environment, "presets", "run", "fig4-left", "--watch")
    assert code == 0, error
    assert shown.splitlines()[-1] == "agrees"
    _, listed, _ = mpt_here(environment, "presets")
    rows = {line.split()[0]: line.split() for line in listed.splitlines() if line.strip()}
    assert rows["name"] == ["name", "title", "needs", "took", "status"]
    assert rows["fig4-left"][-1] == "agrees"
    assert rows["fig4-left"][-2] == "s"
    assert rows["fig3-vae-mnist"][-4:] == ["mnist", "-", "not", "run"]
    assert rows["table2-ax"][-5:] == ["ax,", "bert-base-uncased", "-", "not", "run"]
    assert rows["swapped-atoms"][-4:] == ["rxnfp-bert", "-", "not", "run"]  # its texts are its own
