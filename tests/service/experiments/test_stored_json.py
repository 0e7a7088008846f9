"""Comparisons of stored specs and tags in SQL: small specs by PostgreSQL's index, large ones beside
it."""

import json
from contextlib import closing
from itertools import product

from sqlalchemy import text, update

from service.db.engine import Database
from service.experiments.listing import Wanted, page_of
from service.experiments.models import SMALL_SPEC, Experiment
from service.refusals import ApiError
from service.settings import Settings
from tests.support.attempts import submitted
from tests.support.ppca_spec import ppca_spec
from tests.support.stored import change

WAL_BYTES = text("SELECT pg_current_wal_insert_lsn() - '0/0'")
"""Number of bytes that PostgreSQL has written to its log."""


PATHS = ("seeds", "model.latent_dim", "model.family", "evaluate.convergence", "train", "data.lines",
         "model.checkpoint", "evaluate.target_std_err", "model")  # fmt: skip
VALUES = ("1", "2", "1.0", "null", "true", '"ppca"', '"x"')


def test_large_specs_compare_as_small_ones(lab: Settings) -> None:
    """They are compared by other means. A field that is missing equals nothing."""
    wanted = [
        one.format(path, value)
        for path, value in product(PATHS, VALUES)
        for one in (
            "spec.{} = {}",
            "spec.{} != {}",
            "spec.{} in ({}, 77)",
            "not (spec.{} in ({}, 77))",
        )
    ]
    with closing(Database(lab.url)) as database:
        for name, seeds in (("a", [1, 2]), ("b", [3]), ("c", [4])):
            dims = dict.fromkeys(("model__latent_dim", "data__latent_dim"), len(seeds))
            submitted(database, ppca_spec(seeds=seeds, **dims), name=name)
        answers = []
        for size in (1, SMALL_SPEC + 1):
            with database.transaction() as session:
                session.execute(update(Experiment).values(spec_bytes=size))
            answers.append({one: names_or_refusal(database, one) for one in wanted})
    assert answers[0] == answers[1]
    assert answers[0]["spec.seeds = 1"] == answers[0]["spec.model.latent_dim = 2"] == "a"
    assert answers[0]["spec.model.checkpoint != 1"] == "cba"
    assert {*answers[0].values()} >= {"", "a", "cb", "cba"}


def names_or_refusal(database: Database, filter: str) -> str:
    """The names that a filter finds, or its problem."""
    try:
        with database.snapshot() as session:
            page = page_of(session, 1, Wanted(filter=filter), limit=10)
        return "".join(one.name or "" for one in page.items)
    except ApiError as error:
        return error.problems[0].detail


def test_an_update_of_a_large_spec_writes_none_of_its_values_again(lab: Settings) -> None:
    """With 1,900 values, a change of the visibility of 20,000 experiments took 23 s."""
    with closing(Database(lab.url)) as database:
        written = []
        for seeds in ([1], [*range(1000)]):
            spec = ppca_spec(seeds=seeds)
            id_ = submitted(database, spec)
            change(database, id_, spec_bytes=len(json.dumps(spec)))
            change(database, id_, visibility="lab")
            with database.snapshot() as session:
                before = session.scalar(WAL_BYTES)
            change(database, id_, visibility="private")
            with database.snapshot() as session:
                written.append(session.scalar(WAL_BYTES) - before)
    assert written[1] < 3 * written[0]
