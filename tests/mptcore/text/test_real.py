"""Real pretrained models on real text: what ../shared/data/README.md says to expect of them."""

import os
from pathlib import Path
from typing import Any

import pytest

from mptcore.records import Metric, Point, Record
from mptcore.run import run
from tests.mptcore.test_checkpoint import spec_of

HAVE = Path(os.environ.get("MPT_MODELS_DIR", "/nowhere"), "rxnfp-bert").is_dir()
pytestmark = pytest.mark.skipif(not HAVE, reason="needs the checkpoints of MPT_MODELS_DIR")

RATES = [0.01, 0.15, 0.5, 0.85, 0.99]
MOLECULES = {"source": "text", "file": "nci_smiles.txt"}
SENTENCES = {"source": "text", "file": "rotten_tomatoes.txt"}


def ran(model: dict[str, Any], data: dict[str, Any], **spec: Any) -> list[Record]:
    model = {"family": "masked_lm", **model}
    value = {"model": model, "data": data, "compute": {"threads": 1}, **spec}
    return list(run(spec_of(value)))


def curve(found: list[Record], **labels: Any) -> dict[float, Point]:
    return {
        p.x: p
        for p in found
        if isinstance(p, Point)
        and p.series == "score_by_rate"
        and labels.items() <= dict(p.labels).items()
    }


def area(found: list[Record], **labels: Any) -> Metric:
    (one,) = (
        r
        for r in found
        if isinstance(r, Metric) and r.name == "area" and labels.items() <= dict(r.labels).items()
    )
    return one


@pytest.mark.parametrize(
    ("name", "first", "last", "random"),
    [("rxnfp-bert", -1.2, -3.05, -6.4), ("rxnmapper-albert", -1.4, -12.0, -6.4)],
)
def test_pretrained_against_random(name: str, first: float, last: float, random: float) -> None:
    """Fig. 5 (right) on molecules: a pretrained model's curve falls, most of it at the end; a
    random one's is flat at −log V. One in two of the molecules that the README was measured on."""
    pretrained = {"checkpoint": name}
    masks = {"schedule": "rates", "rates": RATES, "per_size": 2}
    found = ran(
        pretrained,
        {**MOLECULES, "n": 128},
        baseline={"family": "masked_lm", "checkpoint": name, "init": "random"},
        evaluate={"masks": masks},
    )
    learned, flat = curve(found, model="model"), curve(found, model="baseline")
    assert all((p.std_err or 0) > 0 and p.n == 256 for p in learned.values())
    values = [learned[rate].value or 0 for rate in RATES]
    assert values[1:] == sorted(values[1:], reverse=True)
    assert values[0] == pytest.approx(first, abs=0.4)
    assert values[-1] == pytest.approx(last, abs=0.8)
    level = [flat[rate].value or 0 for rate in RATES]
    assert level == pytest.approx([random] * 5, abs=0.35)
    assert max(level) - min(level) < 0.2
    assert (area(found, model="model").value or 0) > (area(found, model="baseline").value or 0)


def test_a_random_bert_of_the_paper_s_size_has_a_flat_curve_and_its_area() -> None:
    """Table 2's random rows are −5245 to −5362: −log 30,522 for each of 512 tokens, and a little
    more for predictions that are not quite uniform."""
    sizes = {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12}
    model = {
        "checkpoint": "bert-uncased-tokenizer",
        "init": "random",
        "architecture": {**sizes, "intermediate_size": 3072},
    }
    rates = [0.1, 0.3, 0.5, 0.7, 0.9]  # each stands for a fifth of the axis
    masks = {"schedule": "rates", "rates": rates, "per_size": 1}
    found = ran(model, {**SENTENCES, "n": 8}, evaluate={"masks": masks})
    level = [p.value or 0 for p in curve(found).values()]
    whole = (area(found).value or 0) * 0.99
    assert -5450 < whole < -5200
    assert max(level) - min(level) < 0.5


def test_a_small_bert_learns_sentences() -> None:
    """The flat curve becomes the long-tailed one, its area rising at every snapshot: a minute's
    form of benchmarks/reports/small-bert.md."""
    model = {
        "checkpoint": "bert-uncased-tokenizer",
        "init": "random",
        "architecture": {
            "hidden_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "intermediate_size": 128,
            "max_position_embeddings": 64,
        },
    }
    train = {
        "steps": 60,
        "batch_size": 32,
        "learning_rate": 0.003,
        "warmup_steps": 5,
        "masks": {"schedule": "uniform"},
        "curve_at": [0, 20, 40, 60],
        "evaluate_every": 20,
    }
    found = ran(
        model,
        {**SENTENCES, "heldout": 0.01},
        train=train,
        evaluate={"masks": {"schedule": "rates", "rates": RATES}},
    )
    areas = [area(found, step=step).value or 0 for step in (0, 20, 40, 60)]
    assert areas == sorted(areas)
    assert areas[-1] - areas[0] > 1000
