"""References by id are resolved for every family, including new ones."""

from typing import Any, ClassVar, Literal

import pytest

from mptcore.specs import OutsideExperiment, validate_spec
from mptcore.specs.base import Spec
from mptcore.specs.experiment import VectorExperiment
from mptcore.specs.text import too_few
from service.datasets.models import Dataset
from service.datasets.sizes import NO_UPLOAD, Uploads
from service.db.engine import Database
from service.experiments.references import ReferencedInputs, reference_problems


class CoinModel(Spec):
    family: Literal["coin"]


class CoinExperiment(VectorExperiment, OutsideExperiment):
    run: ClassVar[str] = "coin.run:CoinRun"
    model: CoinModel


def test_a_family_without_baseline_and_weights(database: Database) -> None:
    spec = CoinExperiment.model_validate(
        {
            "model": {"family": "coin"},
            "data": {"source": "upload", "dataset": "a" * 32, "n": 9, "dim": 7},
        }
    )
    with database.snapshot() as session:
        uploads = Uploads(session, 1)
        inputs = ReferencedInputs.of(session, uploads, [spec])
        found = [*reference_problems(inputs, spec)]
    assert [(one.pointer, one.detail) for one in found] == [("/data/dataset", NO_UPLOAD)]


UNNAMED = "this upload has no columns: leave it out"
COLUMNS = "the upload's columns of text are body, text; not title"


@pytest.mark.parametrize(
    ("dataset", "given", "problems"),
    [
        ("text", {"column": "text", "n": 9}, []),
        ("text", {"column": "text", "n": 10}, [("/data/n", too_few(9))]),
        ("plain", {"column": "title"}, []),
        ("text", {"column": "title"}, [("/data/column", COLUMNS)]),
        ("numbers", {"column": "text"}, [("/data/dataset", "this upload holds numbers, not text")]),
        ("gone", {"column": "text"}, [("/data/dataset", NO_UPLOAD)]),
        ("text", {"column": "text", "second_column": "body", "n": 18}, []),
        ("text", {"second_column": "body", "n": 20}, [("/data/n", too_few(18))]),
        ("text", {"column": "text", "second_column": "title"}, [("/data/second_column", COLUMNS)]),
        ("plain", {"second_column": "body"}, [("/data/second_column", UNNAMED)]),
    ],
)
def test_a_text_needs_an_upload_of_text_with_its_columns(
    database: Database, dataset: str, given: dict[str, Any], problems: list[tuple[str, str]]
) -> None:
    shapes = {"text": (None, ["body", "text"]), "plain": (None, None), "numbers": (7, None)}
    spec = validate_spec(
        {
            "model": {"family": "masked_lm", "checkpoint": "tiny"},
            "data": {"source": "text", "dataset": dataset, **given},
            "evaluate": {"masks": {"schedule": "rates", "rates": [0.5]}},
        }
    )
    with database.transaction() as session:
        for id_, (dim, columns) in shapes.items():
            session.add(Dataset(id=id_, owner_id=1, name="a", format="jsonl", bytes=1, sha256=id_,
                                n=9, dim=dim, columns=columns))  # fmt: skip
        session.flush()
        inputs = ReferencedInputs.of(session, Uploads(session, 1), [spec])
        found = [*reference_problems(inputs, spec)]
    assert [(one.pointer, one.detail) for one in found] == problems
