"""Scores of each text: against plain transformers, null with a reason, and resumed."""

import itertools
import json
import math
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers.models import WordPiece
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing

from benchmarks.calibration.texts import TARGETS, calibration, decisions, noise_calibration
from mptcore.families.masked_lm import text_table
from mptcore.families.masked_lm.text_cumulative import CumulativeScores
from mptcore.protocol.records import Artifact, Log, Progress, Record, RunError
from mptcore.run import resumable
from mptcore.runtime.checkpoint import Snapshot, files, first_whole
from mptcore.runtime.state import RunState
from mptcore.specs import SpecError
from tests.support import tiny_lm
from tests.support.lm_specs import FRESH, TRAIN
from tests.support.runs import metric, spec_of, value_of

PIECES = ["un", "##like", "##ly", "cat", "##s", "sat", "on", "the", "mat", "##ting", "a"]
LINES = ["unlikely cats", "the cats on a mat", "unlike matting", "cat sat on the mats", "a"]
ALL = ["pll", "pll_word_l2r", "unmasked"]


@pytest.fixture(autouse=True)
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the checkpoint `pieces`, whose words have several tokens."""
    folder = tmp_path / "models"
    tiny_lm.network("bert", PIECES, scale=8).save_pretrained(folder / "pieces")
    tokens = tiny_lm.SPECIAL + PIECES
    vocabulary = {token: i for i, token in enumerate(tokens)}
    own = tokenizers.Tokenizer(WordPiece(vocabulary, unk_token="[UNK]"))
    own.pre_tokenizer = Whitespace()
    frame = [("[CLS]", 2), ("[SEP]", 3)]
    own.post_processor = TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=frame)
    special = {f"{name[1:-1].lower()}_token": name for name in tiny_lm.SPECIAL}
    transformers.PreTrainedTokenizerFast(tokenizer_object=own, **special).save_pretrained(
        folder / "pieces"
    )
    monkeypatch.setenv("MPT_MODELS_DIR", str(folder))
    monkeypatch.setenv("MPT_DATA_DIR", str(tmp_path))
    return folder


def of(data: dict[str, Any] | list[str], **texts: Any) -> dict[str, Any]:
    if isinstance(data, list):
        data = {"lines": data}
    return {
        "model": {"family": "masked_lm", "checkpoint": "pieces"},
        "data": {"source": "text", **data},
        "evaluate": {"texts": texts},
        "compute": {"threads": 1, "memory_mib": 1},
    }


def scored(value: dict[str, Any], folder: Path) -> tuple[list[dict[str, Any]], list[Record]]:
    """The rows of the table, and all records."""
    found = [one for one in resumable(spec_of(value), RunState(work_dir=folder)) if one is not None]
    return rows_in(folder), found


def rows_in(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "texts.jsonl").read_text().splitlines()]


class Plain:
    """The same scores by a loop over plain transformers, a text and a mask at a time."""

    def __init__(self, folder: Path):
        self.network = transformers.BertForMaskedLM.from_pretrained(folder).double().eval()
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(folder)

    def log_probs(self, text: str, masked: tuple[int, ...]) -> torch.Tensor:
        """Log p of the tokens of a text, with some masked."""
        ids = torch.tensor(self.tokenizer(text)["input_ids"])
        seen = ids.clone()
        seen[[1 + i for i in masked]] = self.tokenizer.mask_token_id
        with torch.no_grad():
            found: torch.Tensor = self.network(seen[None]).logits[0].log_softmax(-1)
        return found[torch.arange(len(ids)), ids][1:-1]

    def pll(self, text: str, in_words: bool = False) -> list[float]:
        words = self.tokenizer(text).word_ids()[1:-1]
        found = []
        for i, word in enumerate(words):
            later = [j for j in range(i + 1, len(words)) if in_words and words[j] == word]
            found.append(self.log_probs(text, (i, *later))[i].item())
        return found

    def cumulative(self, text: str) -> float:
        size = len(self.tokenizer(text)["input_ids"]) - 2
        total = 0.0
        for m in range(1, size + 1):
            masks = [*itertools.combinations(range(size), m)]
            means = [self.log_probs(text, mask)[list(mask)].mean().item() for mask in masks]
            total += sum(means) / len(masks)
        return total


def test_scores_equal_those_of_plain_transformers(models: Path, tmp_path: Path) -> None:
    plain = Plain(models / "pieces")
    rows, found = scored(of(LINES, scores=ALL, per_token=True), tmp_path)
    assert [row["text"] for row in rows] == LINES
    for row in rows:
        pll, within = plain.pll(row["text"]), plain.pll(row["text"], in_words=True)
        assert row["pll"] == pytest.approx(sum(pll), abs=1e-4)
        assert row["pll_word_l2r"] == pytest.approx(sum(within), abs=1e-4)
        assert [one["pll"] for one in row["by_token"]] == pytest.approx(pll, abs=1e-4)
        assert [one["pll_word_l2r"] for one in row["by_token"]] == pytest.approx(within, abs=1e-4)
        assert row["unmasked"] == pytest.approx(
            plain.log_probs(row["text"], ()).sum().item(), abs=1e-4
        )
    assert any(abs(row["pll"] - row["pll_word_l2r"]) > 0.1 for row in rows)
    first = rows[0]
    assert (first["tokens"], first["words"], first["characters"]) == (5, 2, 13)
    assert [one["text"] for one in first["by_token"]] == ["un", "like", "ly", "cat", "s"]
    assert [(one["start"], one["end"]) for one in first["by_token"]][2:4] == [(6, 8), (9, 12)]
    mean = sum(row["pll"] for row in rows) / len(rows)
    assert value_of(metric(found, "pll")) == pytest.approx(mean)
    tokens = sum(row["tokens"] for row in rows)
    bits = -mean * len(rows) / tokens / math.log(2)
    assert value_of(metric(found, "bits_per_token", of="pll")) == pytest.approx(bits)


def test_the_cumulative_score_of_a_short_text_is_exact(models: Path, tmp_path: Path) -> None:
    plain = Plain(models / "pieces")
    rows, found = scored(of(LINES, scores=["cumulative"], target_std_err=0.1), tmp_path)
    for row in (rows[0], rows[4]):  # of 5 tokens and of 1
        assert row["cumulative"] == pytest.approx(plain.cumulative(row["text"]), abs=1e-4)
        assert row["cumulative_std_err"] == 0
        assert row["cumulative_masks"] == 2 ** row["tokens"] - 1
    assert value_of(metric(found, "masks")) == sum(row["cumulative_masks"] for row in rows)


def test_the_cumulative_score_of_a_longer_text_has_its_error(models: Path, tmp_path: Path) -> None:
    text = "the cats sat on unlikely"  # 8 tokens
    rows, found = scored(of([text, text], scores=["cumulative"], target_std_err=0.3), tmp_path)
    expected = Plain(models / "pieces").cumulative(text)
    values = [row["cumulative"] for row in rows]
    assert values[0] != values[1]  # each text has masks of its own
    for row in rows:
        assert 0 < row["cumulative_std_err"] <= 0.3
        assert abs(row["cumulative"] - expected) < 4 * row["cumulative_std_err"]
    of_mean = math.hypot(*(row["cumulative_std_err"] for row in rows)) / 2
    assert metric(found, "cumulative").std_err == pytest.approx(of_mean)


@pytest.mark.parametrize("target", TARGETS)
def test_errors_of_texts_are_calibrated(target: float) -> None:
    """The short form of `make calibration`: z over texts has mean 0 and sd 1, within four standard
    errors, and decided pairs are rarely wrong."""
    one, found, truths = calibration(texts := 150, target)
    assert abs(one.mean) < 4 / math.sqrt(texts)
    assert abs(one.sd - 1) < 4 / math.sqrt(2 * texts)
    pairs = decisions(found, truths)
    assert pairs.decided > pairs.pairs / 3
    assert pairs.wrong <= 0.05 * pairs.decided + 4 * math.sqrt(0.05 * pairs.decided)


def test_errors_of_texts_that_stop_after_few_masks_are_not_too_small() -> None:
    """A text stops early if the variance of its few masks is too small by chance. Its error is
    wider for that, and as its pilot is predicted worse than later masks: the sd of z is 0.96."""
    one, found = noise_calibration(texts := 5000, needed=32)
    assert abs(one.mean) < 4 / math.sqrt(texts)
    assert 0.9 < one.sd < 1 + 4 / math.sqrt(2 * texts)
    assert found.masks.double().mean() < 72


def test_texts_spend_masks_only_up_to_the_maximum(tmp_path: Path) -> None:
    text = "the cats sat on unlikely mats"
    spec = of([text], scores=["cumulative"], target_std_err=1e-3, max_masks=200)
    (row,), found = scored(spec, tmp_path)
    assert row["cumulative_masks"] == 200
    assert row["cumulative_std_err"] > 1e-3
    assert value_of(metric(found, "texts_over_target")) == 1
    assert [one.done for one in found if isinstance(one, Progress)][-1] == 200


def test_a_relative_target_is_a_fraction_of_each_score(tmp_path: Path) -> None:
    texts = ["the cats sat on unlikely mats", "the cats sat on unlikely mats " * 3]
    fractions = {"target_std_err": 2e-4, "relative": True, "max_masks": 100_000}
    spec = of(texts, scores=["cumulative"], **fractions)
    short, long = (row for row in scored(spec, tmp_path)[0])
    for row in (short, long):
        share = -row["cumulative_std_err"] / row["cumulative"]
        assert 1e-4 < share <= 2.1e-4
    assert long["cumulative_std_err"] > 1.5 * short["cumulative_std_err"]
    model: Any = None
    found = CumulativeScores(model, model, RunState(), [], 0.02, 1, True)
    assert found.target_of(torch.tensor([-3.0, 5.0])).tolist() == pytest.approx([0.06, 0.1])
    found = CumulativeScores(model, model, RunState(), [], 0.02, 1)
    assert found.target_of(torch.tensor([-3.0, 5.0])).tolist() == pytest.approx([0.02] * 2)


@pytest.mark.parametrize(
    ("target", "most", "cure"), [(1e-3, 200, "raise max_masks"), (1e6, 200, None)]
)
def test_texts_above_the_target_are_warned_of(
    target: float, most: int, cure: str | None, tmp_path: Path
) -> None:
    text = "the cats sat on unlikely mats"
    spec = of([text], scores=["cumulative"], target_std_err=target, max_masks=most)
    _, found = scored(spec, tmp_path)
    told = [one.message for one in found if isinstance(one, Log) and one.level == "warning"]
    detail = "1 of 1 texts have a larger standard error than the target: "
    assert told == ([f"{detail}{cure}"] if cure else [])


def stopped(value: dict[str, Any], folder: Path, steps: int) -> bool:
    """Run some steps and save, as a run that is killed afterwards. False if it ended before."""
    spec, state = spec_of(value), RunState(work_dir=folder / "first")
    for taken, record in enumerate(resumable(spec, state)):
        state.seq += record is not None and not isinstance(record, Progress)
        if state.at_safe_point and taken >= steps:
            Snapshot.of(state, spec).save(folder)
            return True
    return False


def test_a_resumed_run_writes_the_same_table(tmp_path: Path) -> None:
    pair = ["the cats sat on unlikely mats", "the mats sat on unlikely cats"]  # the same masks
    value = of(
        [*LINES, *pair] * 8,
        scores=["cumulative", *ALL],
        target_std_err=0.4,
        per_token=True,
        group_size=2,
    )
    scored(value, tmp_path / "whole")
    whole = (tmp_path / "whole" / "texts.jsonl").read_bytes()
    for steps in (6, 20, 40, 60):
        folder = tmp_path / str(steps)
        assert stopped(value, folder, steps)
        spec = spec_of(value)
        saved = first_whole(spec, files(folder))
        assert saved is not None
        assert saved.scores
        state = RunState(scores=saved.scores, work_dir=folder / "second")
        (kept,) = (one for one in resumable(spec, state) if isinstance(one, Artifact))
        assert (folder / "second" / kept.file).read_bytes() == whole


def test_a_text_that_cannot_be_scored_is_null_with_its_reason(tmp_path: Path) -> None:
    long = " ".join(["cat"] * 39)  # 41 tokens with the special ones, of 40
    lines = ["cats", " ", long, "the mat", "a", "sat"]
    rows, found = scored(of(lines, scores=ALL, per_token=True, group_size=2), tmp_path)
    assert [row["row"] for row in rows] == [*range(6)]
    for row, reason in ((rows[1], "no text"), (rows[2], "has 41 tokens")):
        assert [row[name] for name in (*ALL, "tokens", "words", "by_token")] == [None] * 6
        assert reason in row["reason"]
        assert row["characters"] == len(row["text"])
    assert rows[0]["pll"] is not None
    assert rows[0]["reason"] == "a text of its group has no score"
    assert rows[4]["reason"] is None
    assert value_of(metric(found, "texts_left_out")) == 2
    assert value_of(metric(found, "groups_left_out")) == 2
    assert value_of(metric(found, "groups_scored")) == 1


def test_a_score_that_is_not_finite_is_null_with_its_reason(models: Path, tmp_path: Path) -> None:
    file = models / "pieces" / "model.safetensors"
    weights = load_file(file)
    weights["cls.predictions.bias"].fill_(math.nan)
    save_file(weights, file, {"format": "pt"})
    with pytest.raises(RunError, match=r"^no result is a finite number \(pll is nan"):
        scored(of(LINES, per_token=True, group_size=2), tmp_path)
    assert "NaN" not in (tmp_path / "texts.jsonl").read_text()
    for row in rows_in(tmp_path):
        assert row["pll"] is None
        assert row["rank"] is None
        assert "a score is not finite" in row["reason"]


def test_one_score_that_is_not_finite_leaves_the_others(models: Path, tmp_path: Path) -> None:
    """The mean is null with a reason, and the run does not fail."""
    file = models / "pieces" / "model.safetensors"
    weights = load_file(file)
    weights["bert.embeddings.position_embeddings.weight"][-1] = math.nan
    save_file(weights, file, {"format": "pt"})
    places = len(weights["bert.embeddings.position_embeddings.weight"])
    rows, found = scored(of([" ".join(["the"] * (places - 2)), "the mat"]), tmp_path)
    assert [row["pll"] is None for row in rows] == [True, False]
    for name in ("pll", "pll_population"):
        mean = metric(found, name)
        assert mean.value is None
        assert mean.reason == "1 of 2 texts have a score that is not finite"


def test_max_length_refuses_a_text_and_never_cuts_it(tmp_path: Path) -> None:
    rows, _ = scored(of({"lines": ["cats", "the cats sat"], "max_length": 5}), tmp_path)
    assert rows[0]["reason"] is None
    assert "max_length allow 5" in rows[1]["reason"]


def test_a_source_without_any_text_to_score_is_invalid(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"none of the 1 texts can be scored: text 0: it has no"):
        scored(of([" "]), tmp_path)


def test_a_long_text_is_cut_in_the_table_alone(tmp_path: Path) -> None:
    """A word of any length is one unknown token."""
    word = "q" * 30_000
    (row,) = scored(of([f"the {word}"], per_token=True), tmp_path)[0]
    assert len(row["text"]) == text_table.MAX_SHOWN
    assert row["characters"] == len(word) + 4
    first, second = row["by_token"]
    assert (first["text"], second["text"]) == ("the", "q" * text_table.MAX_TOKEN_SHOWN)
    assert (second["start"], second["end"]) == (4, 30_004)


GIVEN: list[dict[str, Any]] = [
    {"text": "the cats on a mat", "given": "the cats "},
    {"text": "the cats on a mat", "given": ""},
    {"text": "unlike matting", "given": "un"},
    {"text": "unlike matting", "given": "unlike mat"},
    {"text": "unlike matting", "given": 10.0},
    {"text": "the cats on a mat", "given": 0},
    {"text": "unlike matting", "given": "like"},
    {"text": "unlike matting", "given": "unlike matting"},
    *({"text": "the mat", "given": wrong} for wrong in (-1, 8, 2.5, True, None)),
    {"text": "the mat"},
]
AFTER = [slice(first, None) for first in (3, 0, 1, 3, 3, 0)]
"""Tokens of the first six texts that begin after what is given."""


def test_a_conditional_score_is_of_the_tokens_after_what_is_given(
    models: Path, tmp_path: Path
) -> None:
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "t.jsonl").write_text("\n".join(map(json.dumps, GIVEN)))
    asked = of({"file": "t.jsonl"}, scores=["conditional"], prefix_column="given", per_token=True)
    rows, found = scored(asked, tmp_path)
    plain = Plain(models / "pieces")
    passes = 0
    for row, given, after in zip(rows[:6], GIVEN[:6], AFTER, strict=True):
        each = plain.pll(given["text"])
        assert row["conditional"] == pytest.approx(sum(each[after]), abs=1e-4)
        assert row["conditional_tokens"] == len(each[after])
        of_tokens = [one["conditional"] for one in row["by_token"]]
        assert of_tokens[after] == pytest.approx(each[after], abs=1e-4)
        assert of_tokens[: after.start] == [None] * after.start
        passes += len(each[after])
    reasons = [row["reason"] for row in rows[6:]]
    no_prefix = "its prefix is neither its beginning nor a number of its characters"
    assert reasons == [no_prefix, "no token begins after its prefix", *[no_prefix] * 6]
    assert [row["conditional"] for row in rows[6:]] == [None] * 8
    last = [one for one in found if isinstance(one, Progress)][-1]
    assert (last.done, last.total) == (passes, passes)
    total = sum(row["conditional"] for row in rows[:6])
    perplexity = value_of(metric(found, "perplexity"))
    assert perplexity == pytest.approx(math.exp(-total / passes), rel=1e-6)


def test_chosen_texts_keep_their_rows_and_groups(tmp_path: Path) -> None:
    rows, _ = scored(of({"lines": LINES, "n": 3}, group_size=2), tmp_path)
    assert len(rows) == 3
    for row in rows:
        assert row["text"] == LINES[row["row"]]
        assert row["group"] == str(row["row"] // 2)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no target": (of(["a"], scores=["cumulative"]), "/evaluate/texts/target_std_err"),
    "relative without a target": (of(["a"], relative=True), "/evaluate/texts/relative"),
    "relative in nats": (
        of(["a"], scores=["cumulative"], target_std_err=1.0, relative=True),
        "/evaluate/texts/relative",
    ),
    "no cumulative": (of(["a"], target_std_err=1.0), "/evaluate/texts/target_std_err"),
    "twice": (of(["a"], scores=["pll", "pll"]), "/evaluate/texts/scores"),
    "tokens": (of(["a"], scores=["unmasked"], per_token=True), "/evaluate/texts/per_token"),
    "no prefix": (of(["a"], scores=["conditional"]), "/evaluate/texts/prefix_column"),
    "no conditional": (
        of({"file": "a.jsonl"}, prefix_column="x"),
        "/evaluate/texts/prefix_column",
    ),
    "prefix of lines": (
        of(["a"], scores=["conditional"], prefix_column="x"),
        "/evaluate/texts/prefix_column",
    ),
    "two groups": (
        of({"file": "a.jsonl"}, group_size=2, group_column="x"),
        "/evaluate/texts/group_column",
    ),
    "categories without groups": (
        of({"file": "a.jsonl"}, category_column="x"),
        "/evaluate/texts/category_column",
    ),
    "columns of lines": (of(["a"], label_column="x"), "/evaluate/texts/label_column"),
    "columns of .txt": (of({"file": "a.txt"}, group_column="x"), "/evaluate/texts/group_column"),
    "blocks": (of({"lines": ["a"], "packing": "blocks"}), "/data/packing"),
    "seeds": ({**of(["a"]), "seeds": [1, 2]}, "/seeds"),
    "training": ({**of(["a"]), "train": TRAIN}, "/train"),
    "baseline": ({**of(["a"]), "baseline": FRESH}, "/baseline"),
    "pll": ({**of(["a"]), "evaluate": {"texts": {}, "pll": True}}, "/evaluate/pll"),
    "orders": ({**of(["a"]), "evaluate": {"texts": {}, "orders": 2}}, "/evaluate/orders"),
    "bert": (
        {**of(["a"]), "model": {**FRESH, "corruption": "bert"}},
        "/model/corruption",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_contradictions_are_refused(name: str) -> None:
    value, pointer = REFUSED[name]
    with pytest.raises(SpecError) as caught:
        spec_of(value)
    assert pointer in [one.pointer for one in caught.value.problems]


def test_the_table_counts_in_the_expected_bytes(tmp_path: Path) -> None:
    """The estimate is above the size of the table, and below twenty times it."""
    for texts in ({"scores": ALL}, {"scores": ALL, "per_token": True, "group_size": 2}):
        value = of(LINES * 20, **texts)
        scored(value, tmp_path)
        size = (tmp_path / "texts.jsonl").stat().st_size
        assert size < spec_of(value).artifact_bytes() < 20 * size
    assert spec_of({**of(LINES), "evaluate": {}}).artifact_bytes() == 0
    assert spec_of(of({"file": "a.txt", "n": 10})).artifact_bytes() > 1000
