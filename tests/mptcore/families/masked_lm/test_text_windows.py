"""Texts that have more tokens than the model or `max_length` allows, scored in windows."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from mptcore.protocol.records import Log, RunError
from mptcore.specs import SpecError
from tests.mptcore.families.masked_lm.test_text_scores import ALL, Plain, models, of, scored
from tests.support.runs import spec_of

__all__ = ["models"]  # a fixture

WORDS = "unlikely cats sat on the mats a cat matting unlike the mat on a mat cats unlikely".split()
LONG = " ".join(WORDS)
SPECIAL = 2


class Reference(Plain):
    """The scores by their definition: a token at a time, in the best of all windows."""

    def __init__(self, folder: Path, length: int, overlap: int):
        super().__init__(folder)
        self.room, self.overlap = length - SPECIAL, overlap

    def starts(self, count: int) -> list[int]:
        """First tokens of the windows. The last one ends where the text ends."""
        step, last = self.room - self.overlap, max(0, count - self.room)
        return [*(start for start in range(0, count, step) if start < last), last]

    def window_of(self, token: int, count: int) -> range:
        """The window in which the nearest cut is farthest away; of equal ones the first."""

        def distance(start: int) -> float:
            left = token - start if start > 0 else math.inf
            right = start + self.room - 1 - token if start + self.room < count else math.inf
            return min(left, right)

        there = [one for one in self.starts(count) if one <= token < one + self.room]
        start = max(there, key=distance)
        return range(start, min(count, start + self.room))

    def scores(self, text: str, in_words: bool, is_masked: bool = True) -> list[float]:
        encoded = self.tokenizer(text)
        ids, words = encoded["input_ids"], encoded.word_ids()[1:-1]
        count = len(words)
        found = []
        for token in range(count):
            window = self.window_of(token, count)
            masked = [token] if is_masked else []
            if in_words:
                masked += [i for i in window if i > token and words[i] == words[token]]
            seen = [ids[0], *(ids[1 + i] for i in window), ids[-1]]
            for i in masked:
                seen[1 + i - window.start] = self.tokenizer.mask_token_id
            with torch.no_grad():
                logits = self.network(torch.tensor([seen])).logits[0, 1 + token - window.start]
            found.append(logits.log_softmax(-1)[ids[1 + token]].item())
        return found


@pytest.mark.parametrize(("length", "overlap"), [(12, 3), (12, 0), (13, 5), (12, 5), (30, 4)])
def test_each_token_is_scored_farthest_from_the_ends_of_its_window(
    models: Path, tmp_path: Path, length: int, overlap: int
) -> None:
    """Windows of several overlaps: none, one that is odd, half a window. A short text beside it has
    the scores that it has alone."""
    plain = Reference(models / "pieces", length, overlap)
    data = {"lines": [LONG, "the cats"], "max_length": length}
    spec = of(data, scores=ALL, per_token=True, window_overlap=overlap)
    rows, records = scored(spec, tmp_path)
    for row in rows:
        pll, within = (plain.scores(row["text"], in_words) for in_words in (False, True))
        tokens = row["by_token"]
        assert [one["pll"] for one in tokens] == pytest.approx(pll, abs=1e-4)
        assert [one["pll_word_l2r"] for one in tokens] == pytest.approx(within, abs=1e-4)
        assert row["pll"] == pytest.approx(sum(pll), abs=1e-4)
        visible = plain.scores(row["text"], False, is_masked=False)
        assert row["unmasked"] == pytest.approx(sum(visible), abs=1e-4)
        assert "".join(one["text"] for one in tokens) == row["text"].replace(" ", "")
        assert row["tokens"] == len(tokens)
        assert row["words"] == len(row["text"].split())
    count = rows[0]["tokens"]
    assert [row["windows"] for row in rows] == [len(plain.starts(count)), 1]
    texts = [one.message for one in records if isinstance(one, Log) and "windows" in one.message]
    said = [f"1 of the texts have more than {length} tokens and are scored in windows"]
    assert texts == (said if count + SPECIAL > length else [])


def test_tokens_after_a_given_beginning_count_in_windows(models: Path, tmp_path: Path) -> None:
    """They are those of the whole text."""
    (tmp_path / "text").mkdir()
    file = tmp_path / "text" / "given.jsonl"
    file.write_text(f'{{"text": "{LONG}", "given": "{LONG[:30]}"}}\n')
    spec = of(
        {"file": "given.jsonl", "max_length": 12},
        scores=["conditional", "pll"],
        prefix_column="given",
        per_token=True,
        window_overlap=4,
    )
    ((row,), _) = scored(spec, tmp_path)
    after = [one["pll"] for one in row["by_token"] if one["start"] >= 30]
    assert row["conditional"] == pytest.approx(sum(after), abs=1e-6)
    assert row["conditional_tokens"] == len(after) < row["tokens"]


def test_a_window_of_special_tokens_alone_is_left_out(models: Path, tmp_path: Path) -> None:
    """A text may name special tokens, which are not scored."""
    text = "the cat " + "[MASK] " * 30 + "sat"
    (row,), _ = scored(of({"lines": [text], "max_length": 12}, window_overlap=2), tmp_path)
    assert (row["tokens"], row["windows"]) == (3, 2)
    assert row["pll"] < 0


def test_windows_are_refused_where_they_make_no_sense(models: Path, tmp_path: Path) -> None:
    data: dict[str, Any] = {"lines": [LONG], "max_length": 12}
    refused = "window_overlap is 6, but may be 5 at most, half of the tokens of a window"
    with pytest.raises(RunError, match=refused):
        scored(of(data, window_overlap=6), tmp_path)
    odd = ["[MASK] " * 7 + LONG, "a cat"]  # its special tokens leave three places of ten
    rows, _ = scored(of({**data, "lines": odd}, window_overlap=2), tmp_path)
    assert rows[0]["pll"] is None
    assert rows[0]["reason"].endswith("tokens, the model and max_length allow 12")
    assert rows[1]["windows"] == 1
    others: dict[str, dict[str, Any]] = {
        "cumulative": {"scores": ["cumulative"], "target_std_err": 1.0},
        "masked_marginal": {"scores": ["masked_marginal"], "wild_type": "ACD"},
    }
    for name, texts in others.items():
        with pytest.raises(SpecError) as caught:
            spec_of(of(data, **texts, window_overlap=4))
        (problem,) = caught.value.problems
        assert problem.pointer == "/evaluate/texts/window_overlap"
        assert problem.detail == f"{name} cannot be computed in windows: leave it null"
    without, _ = scored(of({"lines": [LONG, "a cat"], "max_length": 12}), tmp_path)
    assert without[0]["pll"] is None
    assert "windows" not in without[0]
