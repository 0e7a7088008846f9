"""Molecules as SMILES, each also with two atoms swapped. They are from the NCI's collection, as
distributed with RDKit (BSD licence)."""

import re
from collections.abc import Iterator
from itertools import pairwise

MOLECULES = """
OC(=O)CSC1=NC2=CC=CC=C2S1 COC1=C(NC(C)=O)C=CC(=C1)N N1N=NC2=CC=CC=C12 COC1=CC=C(NC(C)=O)C=C1
CC1=CC=C(NN)C=C1 SC1=C2C=CC=C(S)C2=CC=C1 CC(C)(O)C1=CC=CC=C1 OC(=O)C1=CC=C(O)C=C1
ONC(=O)CC1=CC=CC=C1 COC1=CC=CC(=C1OC)C(N)=O N1C2=CC=CC=C2SC3=C1C=CC=C3 CC(=O)OC1=CC(=CC=C1)C
CN(C(C)=O)C1=CC=CC(=C1)C CCCOC(=O)C1=C(O)C=CC(=C1)O CCCCCCCCCCCCSC#N
CN(C(C)=O)C1=CC=C(O)C=C1 CCCCCC(O)(CCCCC)CCCCC CCCCCCCCCCCCOC(=O)CSC#N OC1=CC=C(C=C1)N=O
FC1=C2C=CC=CC2=CC=C1 S=C1NN(C(=S)S1)C2=CC=CC=C2 CC(C)N(CC(O)=O)CC(O)=O CCN(CC)CCNC1=CC=CC=C1
CS(=O)(=O)OCCCCOS(C)(=O)=O CN1N=CC2=C(N)N=CN=C12 NC1=NC(=C2N=CNC2=N1)S CCCCCCCC(=O)N(CC)CC
CC(=O)NCCNC(C)=O CCCCCCCCCCSC(N)=N CCOC1=C(C=CC=C1)N=C=O CCCOC1=CC=C(C)C=C1 C=CCOC1=CC=CC=C1
COC1=C(OC)C=C(CC(O)=O)C=C1 OC(=O)C1=C(C=O)C=CC=C1 O=C1CCC(=O)N2N1C(=O)CCC2=O
N#CC1=CC2=C(C=CC=C2)C=C1 CC(=O)C=NNC1=CC=CC=C1 CC(=O)NC1=NN=CS1 ON1C(=O)C2=C(C=CC=C2)C1=O
CCCCCC(=O)NC1=CC=CC=C1 CCC=NC(=S)NC(N)=S COC1=C(O)C=CC=C1 COC1=CC2=C(C=O)C=CN=C2C=C1
CCCN(C(C)=O)C1=CC=CC=C1 NC1=NC(=NC(=N1)N)SCCO CCCCCCCCCCCCCCSC(NCC)=NCC
CCCCCCC1=C(O)C=C(O)C=C1 C=CCOCCC(=O)OCC=C CC(=O)OCCC1=C(C=CC=C1)C#N NNC(=O)C1=C(O)C=CC(=C1)N
NC1=NC=NC2=C1C=NN2CCO COC1=CC=CC(=C1O)C=O C1CCC(CC1)NCSC2=NCCS2 CC(=O)C1=CC=C(N)C=C1
CC(C)OC(=O)NC1=CC=C(O)C=C1 CN(C)C(=S)SC(=S)N(C)C CC(C)(CO)C1=CC=CC=C1 CC1=C(O)C=CC(=C1)O
CC(=O)NNC1=CC=CC=C1 CC1=C(C=CC=C1)C(N)=O
""".split()
"""Valid molecules with two elements or more."""
ATOM = re.compile("[A-Z]")


def swapped(smiles: str) -> str:
    """Swap the first two consecutive atoms of different elements. Bonds, rings and branches stay
    where they are."""
    atoms = [(found.start(), found.group()) for found in ATOM.finditer(smiles)]
    for (i, first), (j, second) in pairwise(atoms):
        if first != second:
            return f"{smiles[:i]}{second}{smiles[i + 1 : j]}{first}{smiles[j + 1 :]}"
    raise ValueError(f"{smiles} has only one element")


def pairs() -> Iterator[str]:
    """Yield each molecule, and after it the same with two atoms swapped."""
    for smiles in MOLECULES:
        yield from (smiles, swapped(smiles))
