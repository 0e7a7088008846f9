"""Pairs of molecules."""

from collections import Counter

import pytest

from mptcore.presets.molecules import MOLECULES, pairs, swapped


def test_two_atoms_change_places() -> None:
    assert swapped("CC(=O)N1") == "CO(=C)N1"
    assert swapped("N1=CC") == "C1=NC"
    with pytest.raises(ValueError, match="CC has only one element"):
        swapped("CC")


def test_each_molecule_is_beside_another_text_of_the_same_atoms() -> None:
    found = [*pairs()]
    assert len(set(found)) == len(found) == 2 * len(MOLECULES)
    for molecule, other in zip(found[::2], found[1::2], strict=True):
        assert molecule in MOLECULES
        assert Counter(molecule) == Counter(other)
        assert sum(a != b for a, b in zip(molecule, other, strict=True)) == 2
