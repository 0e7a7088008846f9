"""Packages of families from outside, laid out as pip installs them."""

import shutil
from pathlib import Path

MARKOV = Path(__file__).parent / "markov"
"""The sources of the toy package, with its contract tests."""


def install(
    site: Path,
    *,
    package: str = "markov-chain",
    family: str = "markov",
    experiment: str = "markov_chain.spec:MarkovExperiment",
) -> Path:
    """Install a package that registers a family into a folder of modules: its metadata, and the
    modules of the toy. Return the folder of the metadata."""
    modules = site / "markov_chain"
    shutil.copytree(MARKOV / "markov_chain", modules, dirs_exist_ok=True)
    info = site / f"{package.replace('-', '_')}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[mptlab.families]\n{family} = {experiment}\n")
    return info
