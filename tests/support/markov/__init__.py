"""A toy family, and its registration in a copy of the source tree."""

import shutil
from pathlib import Path

ROOT = Path(__file__).parents[3]
NEW_FILES = {
    "spec.py": "mptcore/specs/families/markov.py",
    "family.py": "mptcore/families/markov.py",
    "contract.py": "test_markov.py",
}
EDITS = {
    "mptcore/specs/union.py": {
        "from mptcore.specs.families.masked_lm import MaskedLmExperiment\n": (
            "from mptcore.specs.families.markov import MarkovExperiment\n"
            "from mptcore.specs.families.masked_lm import MaskedLmExperiment\n"
        ),
        "MaskedLmExperiment, ByFamily()": "MaskedLmExperiment | MarkovExperiment, ByFamily()",
    },
    "mptcore/run.py": {
        "from mptcore.families.vae.run import VaeRun\n": (
            "from mptcore.families.markov import MarkovRun\n"
            "from mptcore.families.vae.run import VaeRun\n"
            "from mptcore.specs.families.markov import MarkovExperiment\n"
        ),
        "        case _:\n            assert_never(spec)": (
            "        case MarkovExperiment():\n"
            "            return MarkovRun(spec, state, device)\n"
            "        case _:\n            assert_never(spec)"
        ),
    },
}


def register(tree: Path) -> None:
    """Make a source tree in a new folder in which the toy is a family as any other: three new
    files, two edits, and nothing changed outside mptcore."""
    tree.mkdir()
    for name in ("docs", "migrations", "mptlab", "pyproject.toml", "service", "tests"):
        (tree / name).symlink_to(ROOT / name)
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "mptcore", tree / "mptcore", ignore=ignored)
    for source, target in NEW_FILES.items():
        text = (Path(__file__).parent / source).read_text()
        text = text.replace("tests.support.markov.spec", "mptcore.specs.families.markov")
        text = text.replace("tests.support.markov.family", "mptcore.families.markov")
        (tree / target).write_text(text)
    for file, changes in EDITS.items():
        text = (tree / file).read_text()
        for before, after in changes.items():
            assert text.count(before) == 1, (file, before)
            text = text.replace(before, after)
        (tree / file).write_text(text)
