"""Preset files: what they may contain, and what is refused."""

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from mptcore.presets import FOLDER, PresetError, Presets, Results, read_presets
from mptcore.protocol.records import encode
from mptcore.run import run

ROOT = Path(__file__).parents[3]
DOCUMENT = (ROOT / "docs" / "adding-things.md").read_text()
(EXAMPLE,) = re.findall(r"^```yaml\n(.*?)^```$", DOCUMENT, re.S | re.M)
"""The whole file that developers are shown."""


def written(folder: Path, text: str, name: str = "example.yaml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_the_documented_file_is_a_preset_that_agrees(tmp_path: Path) -> None:
    (preset,) = read_presets(written(tmp_path, EXAMPLE))
    assert preset.published == {"difference": (0, 0), "margin": (0.5,)}
    assert [spec.seeds for spec in preset.specs] == [(3, 4, 5, 6)] * 2
    results = [
        Results.of_records(json.loads(encode(i, record)) for i, record in enumerate(run(spec)))
        for spec in preset.specs
    ]
    verdict = preset.verdict(results)
    assert verdict.verdict == "agrees"
    assert [figure.what for figure in verdict.comparisons] == [
        f"area − LML, K = {latent_dim}" for latent_dim in (1, 2)
    ]
    assert min(figure.power for figure in verdict.comparisons) > 0.9


def test_there_is_a_spec_for_each_combination_of_changes(tmp_path: Path) -> None:
    sizes = """
        - - evaluate: {masks: {per_size: 10}}
          - evaluate: {masks: {per_size: 20}}
  checks:"""
    text = EXAMPLE.replace("\n  checks:", sizes).replace("part: 1", "part: [1, 2]")
    (preset,) = read_presets(written(tmp_path, text.replace("part: 2", "part: [3, 4]")))
    specs: list[Any] = [*preset.specs]
    assert [(spec.model.latent_dim, spec.evaluate.masks.per_size) for spec in specs] == [
        (1, 10), (1, 20), (2, 10), (2, 20)
    ]  # fmt: skip


CHECK = "/checks/0/checks/0"


@pytest.mark.parametrize(
    ("old", "new", "field", "why"),
    [
        ("  title: Is", "  source: x\n  title: Is", "/source", "unknown"),
        ("  title: Is", "  name: Is", "/title", "required"),
        ("[0, 0]", "[0, none]", "/published/difference", "number"),
        ("{difference:", "{more: 1, difference:", "/published/more", "no check uses"),
        ("[0, 0]", "[0, 0, 0]", "/published/difference", r"difference\[2\]"),
        ("[0, 0]", "[0]", f"{CHECK}/test/equivalent/value", "1 value"),
        ("item: 1", "item: 2", f"{CHECK}/test/equivalent/value", "2 values"),
        ("published.margin", "published.margni", f"{CHECK}/test/equivalent/margin", "mean margin"),
        ("published.margin", "published.difference", f"{CHECK}/test/equivalent/margin", "2 values"),
        ("published.margin", "wide", f"{CHECK}/test/equivalent/margin", "number"),
        ("n: 100", "n: many", "/specs/0/data/n", "integer"),
        ("dim: 5,", "dims: 5,", "/specs/0/data/dims", "did you mean dim"),
        ("vary:", "changes:", "/specs/0/changes", "unknown"),
        ("{first: 3, count: 4}", "{first: 3}", "/specs/0/seeds", "list"),
        ("figure:", "name:", f"{CHECK}/figure", "required"),
        ("measure: {mean:", "measure: {maen:", f"{CHECK}/measure/maen", "did you mean mean"),
        ("{mean:", "{sd: {}, mean:", f"{CHECK}/measure", "one of metric, mean"),
        ("{metric:", "{metrics:", f"{CHECK}/measure/mean/of/metrics", "unknown"),
        ("{metric:", "{series: lml, metric:", f"{CHECK}/measure/mean/of", "a series"),
        ("{mean: {", "{mean: {scale: 2, ", f"{CHECK}/measure/mean/scale", "unknown"),
        ("{part: 2", "{part: 3", f"{CHECK}/measure", "part 3: there are 2 specs"),
        ("{part: 2", "{part: 1", "/checks", "no check uses part 2"),
        ("{equivalent:", "{equal:", f"{CHECK}/test/equal", "equivalent"),
        (", margin: published.margin}", "}", f"{CHECK}/test/equivalent/margin", "required"),
        ('part: "{part}"', 'part: "{prat}"', f"{CHECK}/measure/mean/of/part", "did you mean part"),
        ("{part: 1,", "{x: 1, part: 1,", "/checks/0/each/0/x", "no check uses"),
        ("- each:", "- for: 3\n      each:", "/checks/0/for", "unknown"),
    ],
)
def test_a_mistake_is_refused_with_its_field(
    tmp_path: Path, old: str, new: str, field: str, why: str
) -> None:
    assert old in EXAMPLE
    with pytest.raises(PresetError, match=why) as refused:
        read_presets(written(tmp_path, EXAMPLE.replace(old, new)))
    message = str(refused.value)
    assert message.startswith("example.yaml: /small-ppca/")
    assert f"/small-ppca{field}: " in message or f"/small-ppca{field}/" in message


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("example: [", "example.yaml: .* line 2"),
        ("- example", "a mapping"),
        ("", "a mapping"),
        ("example: 3", "/example: a JSON object"),
        ("example: {title: a, statement: b, published: {}, specs: [], checks: []}", "/specs: at l"),
        ("example: {title: a, statement: b, published: {}, specs: [], checks: []}", "/checks: at"),
        (
            EXAMPLE.replace("equivalent", "no_more").replace("published.margin", "[1]"),
            "/test/no_more/margin: a number",
        ),
        (EXAMPLE + "  title: Another one\n", "title is there twice"),
        ("example: !!python/object/apply:os.getcwd []", "python/object"),
    ],
)
def test_a_file_that_is_no_preset_is_refused(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(PresetError, match=why):
        read_presets(written(tmp_path, text))


def test_two_files_with_one_preset_are_refused(tmp_path: Path) -> None:
    for name in ("1.yaml", "2.yaml"):
        written(tmp_path, EXAMPLE, name)
    with pytest.raises(PresetError, match=r"2\.yaml: /small-ppca"):
        len(Presets(tmp_path))


def test_presets_are_in_the_order_of_their_files(tmp_path: Path) -> None:
    written(tmp_path, EXAMPLE.replace("small-ppca:", "a:"), "2.yaml")
    written(tmp_path, EXAMPLE.replace("small-ppca:", "c:") + EXAMPLE, "1.yaml")
    assert [*Presets(tmp_path)] == ["c", "small-ppca", "a"]


def test_shared_parts_may_be_changed_where_they_are_merged(tmp_path: Path) -> None:
    """YAML's `<<` gives way to the keys beside it, also where it is used twice."""
    text = EXAMPLE.replace("base:\n", "base: &base\n") + EXAMPLE.replace(
        "small-ppca:", "other:"
    ).replace("base:\n", "base:\n        <<: *base\n")
    first, second = read_presets(written(tmp_path, text))
    assert first.specs == second.specs


def test_every_file_of_the_package_is_installed() -> None:
    """The patterns of package data match the files."""
    setuptools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    patterns = setuptools["package-data"]["mptcore.presets"]
    installed = {path for pattern in patterns for path in FOLDER.parent.glob(pattern)}
    assert installed == {path for path in FOLDER.rglob("*") if path.is_file()}
    assert all(isinstance(yaml.safe_load(path.read_text()), dict) for path in installed)
