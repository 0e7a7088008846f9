"""Scores of mutations: against plain transformers, null with a reason, and one pass for each set of
places."""

import json
from collections.abc import Iterator
from itertools import islice, product
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
import transformers
from tokenizers.models import WordPiece
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing

from mptcore.families.masked_lm import mutations
from mptcore.families.masked_lm.corpus import Corpus
from mptcore.families.masked_lm.corpus import Sequence as TokenSequence
from mptcore.families.masked_lm.masks import MaskedBatch, VariantBatch
from mptcore.families.masked_lm.mutations import Change, WildType, changes_of
from mptcore.families.masked_lm.network import MaskedLm
from mptcore.families.masked_lm.packing import Row
from mptcore.protocol.records import Metric, Progress, Record, RunError
from mptcore.run import resumable
from mptcore.runtime.checkpoint import Snapshot, files, first_whole
from mptcore.runtime.state import RunState
from mptcore.specs import SpecError
from tests.support import tiny_lm
from tests.support.runs import metric, spec_of, value_of

LETTERS = "ACDEFGHIKLMNPQRSTVWY"
WILD_TYPE = "MKTAYIAKQR"
BOTH = ["masked_marginal", "wild_type_marginal"]


@pytest.fixture(autouse=True)
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the checkpoint `letters`."""
    folder = tmp_path / "models"
    tiny_lm.network("esm", [*LETTERS, "XX"], scale=8).save_pretrained(folder / "letters")
    tiny_lm.letter_tokenizer(LETTERS).save_pretrained(folder / "letters")
    monkeypatch.setenv("MPT_MODELS_DIR", str(folder))
    monkeypatch.setenv("MPT_DATA_DIR", str(tmp_path))
    return folder


def of(data: dict[str, Any] | list[str], **texts: Any) -> dict[str, Any]:
    if isinstance(data, list):
        data = {"lines": data}
    return {
        "model": {"family": "masked_lm", "checkpoint": "letters"},
        "data": {"source": "text", **data},
        "evaluate": {"texts": {"scores": BOTH, "wild_type": WILD_TYPE, **texts}},
        "compute": {"threads": 1, "memory_mib": 1},
    }


def scored(value: dict[str, Any], folder: Path) -> tuple[list[dict[str, Any]], list[Record]]:
    """The rows of the table, and all records."""
    found = [one for one in resumable(spec_of(value), RunState(work_dir=folder)) if one is not None]
    return [json.loads(line) for line in (folder / "texts.jsonl").read_text().splitlines()], found


def plain_score(folder: Path, mutation: str, masked: bool) -> float:
    """The score by plain transformers, from its definition."""
    network = transformers.EsmForMaskedLM.from_pretrained(folder / "letters").double().eval()
    ids = torch.tensor([[2, *(5 + LETTERS.index(one) for one in WILD_TYPE), 3]])
    changes = [(int(one[1:-1]), one[0], one[-1]) for one in mutation.split(":")]
    seen = ids.clone()
    for place, _, _ in changes:
        if masked:
            seen[0, place] = 4
    with torch.no_grad():
        log_probs = network(seen).logits[0].log_softmax(-1)
    score = sum(
        log_probs[place, 5 + LETTERS.index(new)] - log_probs[place, 5 + LETTERS.index(old)]
        for place, old, new in changes
    )
    return float(score)


MUTATIONS = ["M1A", "A4G:K8R", "K2E", "K8R:A4W", "M1Y", "R10A", "A7V:Q9H:K2M", "A4G"]


def test_scores_are_those_of_plain_transformers(models: Path, tmp_path: Path) -> None:
    rows, records = scored(of(MUTATIONS), tmp_path)
    assert [row["text"] for row in rows] == MUTATIONS
    assert [row["tokens"] for row in rows] == [1, 2, 1, 2, 1, 1, 3, 1]
    for row, masked in product(rows, (True, False)):
        expected = plain_score(models, row["text"], masked)
        assert row[BOTH[not masked]] == pytest.approx(expected, abs=1e-4)
    mean = sum(row["masked_marginal"] for row in rows) / len(rows)
    assert value_of(metric(records, "masked_marginal")) == pytest.approx(mean)
    names = {one.name for one in records if isinstance(one, Metric)}
    assert not names & {"perplexity", "bits_per_token"}  # a ratio of probabilities has none


def test_a_whole_scan_takes_a_pass_for_each_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a single pass where nothing is masked."""
    passes: list[int] = []
    compute = MaskedLm._log_probs

    def counting(self: MaskedLm, row: Row) -> torch.Tensor:
        passes.append(len(row.ids) // (len(WILD_TYPE) + 2))
        return compute(self, row)

    monkeypatch.setattr(MaskedLm, "_log_probs", counting)
    scan = [
        f"{old}{place}{new}"
        for place, old in enumerate(WILD_TYPE, 1)
        for new in LETTERS
        if new != old
    ]
    rows, _ = scored(of(scan, scores=["masked_marginal"]), tmp_path / "masked")
    assert len(rows) == 19 * len(WILD_TYPE)
    assert sum(passes) == len(WILD_TYPE)
    passes.clear()
    scored(of(scan, scores=["wild_type_marginal"]), tmp_path / "seen")
    assert sum(passes) == 1


def test_memory_limits_the_variants_of_a_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part may end within the variants of one place. The scores are the same."""
    scan = [f"M1{new}" for new in LETTERS if new != "M"] + [f"K2{new}" for new in "ACDE"]
    whole, _ = scored(of(scan), tmp_path / "whole")
    monkeypatch.setattr(MaskedLm, "parts", _in_fives)
    parts, _ = scored(of(scan), tmp_path / "parts")
    for one, other in zip(whole, parts, strict=True):
        assert one["masked_marginal"] == pytest.approx(other["masked_marginal"], abs=1e-5)
        assert one["wild_type_marginal"] == pytest.approx(other["wild_type_marginal"], abs=1e-5)


def _in_fives(self: MaskedLm, masks: Any, as_fits: bool = False) -> Any:
    return torch.split(torch.arange(len(masks)), 5)


@pytest.mark.parametrize(
    ("mutation", "reason"),
    [
        ("K1A", "the wild type has M at place 1, not K"),
        ("M11A", "place 11 is beyond the 10 letters of the wild type"),
        ("M0A", "'M0A' is not a change such as A24G; several are joined by a colon"),
        ("M1A K2E", "'M1A K2E' is not a change such as A24G; several are joined by a colon"),
        ("M1A:M1G", "a place is changed twice"),
        ("K2E:A4A", "A4A changes nothing"),
        ("M1B", "the letter B is not a token of its own at place 1"),
        ("M1X", "the letter X is not a token of its own at place 1"),
        (" ", "it has no text"),
    ],
)
def test_a_mutation_that_does_not_fit_has_a_reason(
    mutation: str, reason: str, tmp_path: Path
) -> None:
    (bad, good), records = scored(of([mutation, "M1A"]), tmp_path)
    assert (bad["masked_marginal"], bad["reason"]) == (None, reason)
    assert good["masked_marginal"] is not None
    assert value_of(metric(records, "texts_left_out")) == 1


def test_a_letter_within_a_longer_token_is_not_changed(tmp_path: Path) -> None:
    given = of(["A1C", "X2A", "A4C"], wild_type="AXXA")
    rows, _ = scored(given, tmp_path)
    assert [row["reason"] for row in rows] == [
        None,
        "the letter at place 2 is not a token of its own",
        None,
    ]


def test_a_letter_that_joins_its_neighbour_has_no_token() -> None:
    """The tokens of others would change with it."""
    tokenizer = tiny_lm.letter_tokenizer(LETTERS)
    tokenizer.add_tokens(["AW"])
    wild_type = WildType.of("AKAC", tokenizer, 10)
    changes = [Change(1, "W"), Change(1, "Y"), Change(3, "W"), Change(0, "W")]
    found = wild_type.targets(changes, tokenizer)
    assert found == {Change(1, "Y"): 24, Change(0, "W"): 23}


def test_few_letters_are_tokenized_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though a long word is one token: its copies need memory too."""
    tokenizer = tiny_lm.letter_tokenizer(LETTERS)
    found = []

    def noted(changes: Iterator[Change], count: int) -> Iterator[Change]:
        found.append(count)
        return islice(changes, count)

    monkeypatch.setattr(mutations, "islice", noted)
    monkeypatch.setattr(mutations, "TOGETHER", 120)
    word = WildType("A" * 40, TokenSequence([2, 3], [0, 0], [True, True], [False, False]), {})
    letters = WildType.of("A" * 10, tokenizer, 20)  # with two special tokens
    for one in (word, letters):
        one.targets([], tokenizer)
    assert found == [3, 10]


def test_a_letter_has_the_token_of_its_place() -> None:
    """In a word of WordPiece the first letter's token is A, another's is ##A."""
    pieces = [*tiny_lm.SPECIAL, *"MKA", "##M", "##K", "##A"]
    own = tokenizers.Tokenizer(
        WordPiece({one: i for i, one in enumerate(pieces)}, unk_token="[UNK]")
    )
    own.pre_tokenizer = Whitespace()
    frame = [("[CLS]", 2), ("[SEP]", 3)]
    own.post_processor = TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=frame)
    special = {f"{name[1:-1].lower()}_token": name for name in tiny_lm.SPECIAL}
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=own, **special)
    wild_type = WildType.of("MKM", tokenizer, 10)
    changes = [Change(0, "A"), Change(1, "A"), Change(2, "K")]
    expected = {
        one: pieces.index(two) for one, two in zip(changes, ["A", "##A", "##K"], strict=True)
    }
    assert wild_type.targets(changes, tokenizer) == expected
    assert wild_type.targets(changes[::-1], tokenizer) == expected


def test_an_unknown_letter_of_the_wild_type_is_not_changed(tmp_path: Path) -> None:
    rows, _ = scored(of(["J2A", "A4C"], wild_type="AJTA"), tmp_path)
    assert rows[0]["reason"] == "the letter at place 2 is not a token of its own"
    assert rows[1]["masked_marginal"] is not None


def test_no_mutation_that_fits_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="none of the 2 texts can be scored: text 0: 'no' is not"):
        scored(of(["no", "K1A"]), tmp_path)


def test_a_wild_type_longer_than_the_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="wild_type has 62 tokens, the model and max_length allow"):
        scored(of(["M1A"], wild_type="M" * 60), tmp_path)


@pytest.mark.parametrize("suffix", ["jsonl", "csv"])
def test_labels_and_groups_of_mutations(tmp_path: Path, suffix: str) -> None:
    """A scan with measurements gives their rank correlation. The preset on ProteinGym reads .csv
    files with these columns."""
    labels = {"M1A": 0.5, "K2E": 0.1, "T3A": 0.9, "A4G:K8R": 0.3, "Q9H": 0.4}
    (tmp_path / "text").mkdir()
    lines = [
        json.dumps({"mutant": name, "DMS_score": label, "of": "x"})
        for name, label in labels.items()
    ]
    if suffix == "csv":
        lines = ["mutant,DMS_score,of", *(f"{name},{label},x" for name, label in labels.items())]
    (tmp_path / "text" / f"scan.{suffix}").write_text("\n".join(lines))
    data = {"file": f"scan.{suffix}", "column": "mutant"}
    options = {"label_column": "DMS_score", "group_column": "of"}
    rows, records = scored(of(data, **options), tmp_path / "out")
    assert [row["label"] for row in rows] == [*labels.values()]
    found = metric(records, "spearman").value
    values = torch.tensor([row["masked_marginal"] for row in rows]).argsort().argsort().double()
    given = torch.tensor([*labels.values()]).argsort().argsort().double()
    assert found == pytest.approx(float(torch.corrcoef(torch.stack([values, given]))[0, 1]))
    first = rows[0]["masked_marginal"]
    assert rows[1]["difference"] == pytest.approx(rows[1]["masked_marginal"] - first)


@pytest.mark.parametrize(
    ("texts", "pointer"),
    [
        ({"wild_type": None}, "/evaluate/texts/wild_type"),
        ({"scores": ["pll"]}, "/evaluate/texts/wild_type"),
        ({"scores": ["pll", "masked_marginal"]}, "/evaluate/texts/scores"),
        ({"per_token": True}, "/evaluate/texts/per_token"),
    ],
)
def test_contradictions_are_refused(texts: dict[str, Any], pointer: str) -> None:
    with pytest.raises(SpecError) as refused:
        spec_of(of(["M1A"], **texts))
    assert pointer in [one.pointer for one in refused.value.problems]


def test_mutations_are_not_pairs_of_sentences() -> None:
    value = of(["M1A"])
    value["data"] = {"source": "glue", "subset": "mrpc", "split": "train"}
    with pytest.raises(SpecError) as refused:
        spec_of(value)
    assert "/evaluate/texts/wild_type" in [one.pointer for one in refused.value.problems]


def test_a_resumed_run_writes_the_same_table(tmp_path: Path) -> None:
    value = of(
        [f"{old}{i}{new}" for i, old in enumerate(WILD_TYPE, 1) for new in "ADEFG" if new != old]
    )
    scored(value, tmp_path / "whole")
    for steps in (1, 2):
        spec, first = spec_of(value), RunState(work_dir=tmp_path / "first")
        for record in resumable(spec, first):
            first.seq += record is not None and not isinstance(record, Progress)
            if first.at_safe_point and len(first.scores) >= steps:
                Snapshot.of(first, spec).save(tmp_path / str(steps))
                break
        saved = first_whole(spec, files(tmp_path / str(steps)))
        assert saved is not None
        assert len(saved.scores) == steps
        state = RunState(scores=saved.scores, work_dir=tmp_path / "second")
        list(resumable(spec, state))
        tables = [(tmp_path / name / "texts.jsonl").read_bytes() for name in ("whole", "second")]
        assert tables[0] == tables[1]


def test_changes_are_sorted_by_place() -> None:
    assert changes_of("K8R:A4G", WILD_TYPE) == [Change(3, "G"), Change(7, "R")]


def test_a_change_counts_as_two_logits() -> None:
    """Its token and the wild type's each have one: memory and the limit of CUDA count both."""
    ids = torch.tensor([2, 5, 6, 7, 3])
    maskable = torch.tensor([False, True, True, True, False])
    corpus = Corpus(ids, torch.zeros_like(ids), maskable, torch.tensor([0, 5]))
    one, two = torch.tensor([0, 0]), torch.tensor([1, 2])
    places = torch.tensor([1, 1, 3])
    batch = VariantBatch(corpus, one, two, places, 4, targets=places, contexts=one, masked=True)
    assert batch.logits.tolist() == [2, 4]
    assert MaskedBatch(corpus, one, two, places, 4).logits.tolist() == [1, 2]
    assert batch.lengths.tolist() == [3, 3]  # one input of five tokens for both
