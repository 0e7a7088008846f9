"""Pairs of molecules."""

from collections import Counter
from itertools import pairwise

from mptcore.presets import PRESETS
from mptcore.specs import PlainText


def test_each_molecule_is_beside_itself_with_two_neighbours_swapped() -> None:
    data = PRESETS["swapped-atoms"].specs[0].data
    assert isinstance(data, PlainText)
    lines = data.lines or ()
    assert len(set(lines)) == len(lines) == 120
    for molecule, other in zip(lines[::2], lines[1::2], strict=True):
        assert Counter(molecule) == Counter(other)
        first, second = (i for i, (a, b) in enumerate(zip(molecule, other, strict=True)) if a != b)
        assert (molecule[first], molecule[second]) == (other[second], other[first])
        atoms = [i for i, letter in enumerate(molecule) if letter.isupper()]
        assert (first, second) in pairwise(atoms)
