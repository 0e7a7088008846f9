"""Decisions between two texts from samples of their tokens: how many tokens they take, and how
often they are those of the full scores. The texts are molecules with copies in which two atoms are
swapped, and long mixtures of molecules with different substitutions of an atom. Needs
MPT_MODELS_DIR with rxnfp-bert and MPT_DATA_DIR with text/nci_smiles.txt."""

import json
import os
import random
import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path

import torch
from torch import Tensor

from mptcore.families.masked_lm.corpus import Corpus
from mptcore.families.masked_lm.text_decisions import Decisions
from mptcore.run import resumable
from mptcore.runtime.session import Session
from mptcore.specs import MaskedLmExperiment

PAIRS, MIXTURES, REPEATS = 250, 60, 20
ATOM = "[CNO](?![a-z])"


@dataclass(frozen=True)
class Outcome:
    """Decisions between pairs."""

    share: float
    """Share of all tokens that were scored."""
    early: int
    """Number of pairs that were decided by a sample."""
    right: int
    """Number of these whose better text is that of the full scores."""


def decided(corpus: Corpus, truth: Tensor, seed: int, *, shared_only: bool = False) -> Outcome:
    """Decide between neighbouring texts, whose tokens have the scores (ΣD,). With `shared_only` the
    tokens in which they differ count nothing."""
    pairs = [(i, i + 1) for i in range(0, len(corpus) - 1, 2)]
    found = Decisions.of(pairs, corpus, torch.Generator().manual_seed(seed))
    if shared_only:
        truth = truth.clone()
        truth[[token for group in found.groups for own in group.own for token in own]] = 0.0
    while bool((chosen := found.chosen(sizes := found.planned())).any()):
        found.add(chosen, truth[chosen], sizes)
    sums = torch.segment_reduce(truth, "sum", lengths=corpus.sizes)
    members = found.members()
    early = [(i, j) for i, j in pairs if members[i].sampled is not None]
    values = [0.0 if one.value is None else one.value for one in members]
    right = sum((values[i] > values[j]) == bool(sums[i] > sums[j]) for i, j in early)
    return Outcome(float(found.is_scored.double().mean()), len(early), right)


def swapped(smiles: str) -> str:
    """Swap the first two consecutive atoms of different elements. Bonds, rings and branches stay
    where they are."""
    atoms = [(found.start(), found.group()) for found in re.finditer("[A-Z]", smiles)]
    for (i, first), (j, second) in pairwise(atoms):
        if first != second:
            return f"{smiles[:i]}{second}{smiles[i + 1 : j]}{first}{smiles[j + 1 :]}"
    raise ValueError(f"{smiles} has only one element")


def molecules(draws: random.Random) -> list[str]:
    """Return the molecules of the collection in a random order."""
    lines = Path(os.environ["MPT_DATA_DIR"], "text", "nci_smiles.txt").read_text().split()
    draws.shuffle(lines)
    return lines


def swaps() -> Iterator[str]:
    """Yield molecules, each with the same with two atoms swapped after it."""
    for line in molecules(random.Random(3)):
        try:
            yield from (line, swapped(line))
        except ValueError:  # it has one element only
            continue


def mixtures() -> Iterator[str]:
    """Yield mixtures of four molecules, in pairs: an atom of one molecule is another in each."""
    draws = random.Random(5)
    lines = [line for line in molecules(draws) if re.search(ATOM, line)]
    for i in range(0, len(lines) - 3, 4):
        parts, chosen = lines[i : i + 4], draws.randrange(4)
        places = [found.start() for found in re.finditer(ATOM, parts[chosen])]
        made = []
        for _ in range(2):
            at, line = draws.choice(places), parts[chosen]
            atom = draws.choice([one for one in "CNO" if one != line[at]])
            parts_of = [*parts]
            parts_of[chosen] = f"{line[:at]}{atom}{line[at + 1 :]}"
            made.append(".".join(parts_of))
        if made[0] != made[1]:
            yield from made


def scores(lines: list[str]) -> tuple[Corpus, Tensor]:
    """Return texts as sequences of tokens numbered as they occur, with the score of each token."""
    spec = MaskedLmExperiment.model_validate(
        {
            "model": {"family": "masked_lm", "checkpoint": "rxnfp-bert"},
            "data": {"source": "text", "lines": lines},
            "evaluate": {"texts": {"scores": ["pll"], "per_token": True}},
        }
    )
    with tempfile.TemporaryDirectory() as folder:
        for _ in resumable(spec, Session(work_dir=Path(folder))):
            pass
        table = Path(folder, "texts.jsonl").read_text().splitlines()
    rows = [json.loads(line)["by_token"] for line in table]
    tokens = [one for row in rows for one in row]
    numbers = {text: i for i, text in enumerate(dict.fromkeys(one["text"] for one in tokens))}
    ids = torch.tensor([numbers[one["text"]] for one in tokens], dtype=torch.int32)
    offsets = torch.tensor([0, *(len(row) for row in rows)]).cumsum(0)
    corpus = Corpus(ids, torch.zeros_like(ids), torch.ones(len(ids), dtype=torch.bool), offsets)
    return corpus, torch.tensor([one["pll"] for one in tokens], dtype=torch.float64)


def main() -> None:
    print("| pairs | tokens scored | decided early | of these right |\n|---|---|---|---|")
    for kind, texts, count in (("swaps", swaps(), PAIRS), ("mixtures", mixtures(), MIXTURES)):
        corpus, truth = scores(list(islice(texts, 2 * count)))
        for what, shared_only in (("", False), (", without what differs", True)):
            outcomes = [decided(corpus, truth, i, shared_only=shared_only) for i in range(REPEATS)]
            share = sum(one.share for one in outcomes) / REPEATS
            early = sum(one.early for one in outcomes)
            right = sum(one.right for one in outcomes)
            part = f"{early / count / REPEATS:.0%}"
            print(f"| {count} {kind}{what} | {share:.1%} | {part} | {right / early:.1%} |")


if __name__ == "__main__":
    main()
