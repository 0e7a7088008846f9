"""References by id are resolved for every family, including new ones."""

import pytest

from mptcore.specs import validate_spec
from service.datasets.sizes import NO_UPLOAD
from service.experiments.references import ReferencedInputs, reference_problems
from service.tables.datasets import Dataset
from service.tables.engine import Database
from tests.support.markov.spec import MarkovExperiment


def test_a_family_without_baseline_and_weights(database: Database) -> None:
    spec = MarkovExperiment.model_validate(
        {
            "model": {"family": "markov", "stay": 0.8},
            "data": {"source": "upload", "dataset": "a" * 32, "n": 9, "dim": 7},
        }
    )
    with database.snapshot() as session:
        inputs = ReferencedInputs.of(session, 1, [spec])  # type: ignore[list-item]  # not registered
        found = reference_problems(inputs, spec)  # type: ignore[arg-type]
    assert [(one.pointer, one.detail) for one in found] == [("/data/dataset", NO_UPLOAD)]


COLUMNS = "the upload's columns of text are body, text; not title"


@pytest.mark.parametrize(
    ("dataset", "column", "problems"),
    [
        ("text", "text", []),
        ("plain", "title", []),
        ("text", "title", [("/data/column", COLUMNS)]),
        ("numbers", "text", [("/data/dataset", "this upload holds numbers, not text")]),
        ("gone", "text", [("/data/dataset", NO_UPLOAD)]),
    ],
)
def test_a_text_needs_an_upload_of_text_with_its_column(
    database: Database, dataset: str, column: str, problems: list[tuple[str, str]]
) -> None:
    shapes = {"text": (None, ["body", "text"]), "plain": (None, None), "numbers": (7, None)}
    spec = validate_spec(
        {
            "model": {"family": "masked_lm", "checkpoint": "tiny"},
            "data": {"source": "text", "dataset": dataset, "column": column},
            "evaluate": {"masks": {"schedule": "rates", "rates": [0.5]}},
        }
    )
    with database.transaction() as session:
        for id_, (dim, columns) in shapes.items():
            session.add(Dataset(id=id_, owner_id=1, name="a", format="jsonl", bytes=1, sha256=id_,
                                n=9, dim=dim, columns=columns))  # fmt: skip
        session.flush()
        inputs = ReferencedInputs.of(session, 1, [spec])
        found = reference_problems(inputs, spec)
    assert [(one.pointer, one.detail) for one in found] == problems
