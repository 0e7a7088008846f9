"""What a spec names by id is looked up for every family, one that it never saw too."""

from service.datasets.sizes import NO_UPLOAD
from service.experiments.references import ReferencedInputs, reference_problems
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
