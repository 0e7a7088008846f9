"""The notebooks run, and their stored output equals that of a new run."""

import copy
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from docs.execute import NOTEBOOKS, execute, service, variables


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    made = tmp_path_factory.mktemp("notebooks")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables(made).items():
            patch.setenv(name, value)
        patch.chdir(made)
        with service(made):
            yield made


@pytest.mark.slow
@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
@pytest.mark.usefixtures("folder")
def test_a_notebook_is_stored_with_its_output(file: Path) -> None:
    kept = json.loads(file.read_text())
    again = copy.deepcopy(kept)
    execute(again)
    assert figures(again) == figures(kept) > 0
    texts, numbers = shown(again)
    assert texts == shown(kept)[0]
    assert numbers == pytest.approx(shown(kept)[1], abs=0.15)  # another processor, other digits


def outputs(notebook: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for cell in notebook["cells"]:
        for output in cell.get("outputs", []):
            yield output.get("data") or {"text/plain": output["text"]}


def figures(notebook: dict[str, Any]) -> int:
    return sum("image/png" in one for one in outputs(notebook))


def shown(notebook: dict[str, Any]) -> tuple[list[str], list[float]]:
    """Return the text of the cells' output, and the numbers in it."""
    text = " ".join(one["text/plain"] for one in outputs(notebook))
    words = re.split(r"(-?\d+\.\d+)", text)
    return [one.strip() for one in words[::2]], [float(number) for number in words[1::2]]
