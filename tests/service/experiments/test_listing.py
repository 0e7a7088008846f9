"""Lists of experiments by filter and order, on both databases: matching and excluded rows of each
filter, and messages about invalid filters."""

import shutil
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from service.accounts.models import User
from service.db.engine import Database
from service.experiments.listing import Wanted, load_texts, page_of
from service.experiments.models import SMALL_SPEC, Experiment, Metric
from service.refusals import ApiError
from service.settings import Settings
from service.vocabulary import Status, Visibility, Whose
from tests.support.attempts import submitted
from tests.support.ppca_spec import ppca_spec
from tests.support.servers import PostgreSQL
from tests.support.stored import change

DAY = 86400.0


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def filled(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, prepared_store: Path
) -> Iterator[Database]:
    """One for all tests, which only read."""
    store = shutil.copytree(prepared_store, tmp_path_factory.mktemp("lists") / "store")
    url = Settings(store=store, database_url=None).url
    if request.param == "postgresql":
        server: PostgreSQL = request.getfixturevalue("postgresql")
        name = f"lists_{uuid.uuid4().hex}"
        server.create(name, template="prepared")
        url = server.url(name)
    with closing(Database(url)) as database:
        fill(database)
        yield database


def fill(either: Database) -> None:
    """Four experiments of the first user, a to d in the order they were made, and one of another's
    that is shared, e."""
    with either.transaction() as session:
        session.add(User(id=2, name="ann"))
    ids = {
        "a": submitted(either, ppca_spec(model__latent_dim=1, data__latent_dim=1, seeds=[1, 2]),
                       name="a", tags=["x", "two words"], note="It's 50% of_it"),
        "b": submitted(either, ppca_spec(seeds=[2, 3]), name="b", tags=["x", "é\\"]),
        "c": submitted(either, ppca_spec(evaluate__convergence=True), name="c", priority=3),
        "d": submitted(either),
        "e": submitted(either, name="e", visibility=Visibility.LAB),
    }  # fmt: skip
    for day, (name, id_) in enumerate(ids.items()):
        change(either, id_, created_at=day * DAY)
        if name in "ab":
            change(either, id_, status=Status.SUCCEEDED, finished_at=(9 - day) * DAY)
    change(either, ids["c"], status=Status.FAILED, failure_kind="oom", pinned=True)
    change(either, ids["e"], owner_id=2)
    for name in "ac":
        change(either, ids[name], spec_bytes=SMALL_SPEC + 1)
    with either.transaction() as session:
        for name, seed, value in (("a", 4, -1.0), ("a", 44, -9.0), ("b", 4, -5.0), ("c", 4, None)):
            session.add(Metric(experiment_id=ids[name], name="lml", labels=f'{{"seed":{seed}}}',
                               seq=seed, value=value, std_err=None, reason=None))  # fmt: skip


def found(database: Database, limit: int = 10, **wanted: Any) -> str:
    """The names of the experiments; that of the one without is d."""
    with database.snapshot() as session:
        page = page_of(session, 1, Wanted(**wanted), limit=limit)
    return "".join(one.name or "d" for one in page.items)


@pytest.mark.parametrize(
    ("wanted", "names"),
    [
        ({}, "dcba"),
        ({"whose": Whose.LAB}, "e"),
        ({"whose": Whose.ALL}, "edcba"),
        ({"whose": Whose.ALL, "owner": "ann"}, "e"),
        ({"owner": "ann"}, ""),
        ({"owner": "no one"}, ""),
        ({"status": [Status.QUEUED]}, "d"),
        ({"status": [Status.QUEUED, Status.FAILED]}, "dc"),
        ({"tag": ["x"]}, "ba"),
        ({"tag": ["two words", "é\\"]}, "ba"),
        ({"tag": ["X"]}, ""),
        ({"name": "a"}, "a"),
        ({"family": ["ppca"]}, "dcba"),
        ({"family": ["vae"]}, ""),
        ({"q": "IT'S 50%"}, "a"),
        ({"q": "of_i"}, "a"),
        ({"q": "50_"}, ""),
        ({"q": "WORD"}, "a"),
        ({"q": "é\\"}, "b"),
        ({"q": "["}, ""),
        ({"q": '",'}, ""),
        ({"filter": "status = succeeded"}, "ba"),
        ({"filter": "status != succeeded"}, "dc"),
        ({"filter": "status in (failed, queued)"}, "dc"),
        ({"filter": "not status in (failed, queued)"}, "ba"),
        ({"filter": "name = a or name = b and status = queued"}, "a"),
        ({"filter": "(name = a or name = b) and status = queued"}, ""),
        ({"filter": "name != a"}, "dcb"),
        ({"filter": "not name = a"}, "dcb"),
        ({"filter": "not not name = a"}, "a"),
        ({"filter": "name = null"}, "d"),
        ({"filter": "name != null"}, "cba"),
        ({"filter": "name > a and name <= c"}, "cb"),
        ({"filter": "note ~ '50%'"}, "a"),
        ({"filter": "note ~ '5_%'"}, ""),
        ({"filter": 'note = "It\'s 50% of_it"'}, "a"),
        ({"filter": "failure = oom"}, "c"),
        ({"filter": "pinned = true"}, "c"),
        ({"filter": "priority > 2"}, "c"),
        ({"filter": "priority <= 2.5"}, "dba"),
        ({"filter": 'tag = "two words"'}, "a"),
        ({"filter": "tag != x"}, "dc"),
        ({"filter": "owner = ann"}, ""),
        ({"filter": "owner != ann"}, "dcba"),
        ({"whose": Whose.ALL, "filter": "owner = ann"}, "e"),
        ({"whose": Whose.ALL, "filter": "owner != ann"}, "dcba"),
        ({"filter": "created >= 1970-01-02 and created < 1970-01-03T00:00:00Z"}, "b"),
        ({"filter": "created > 1970-01-02T01:00:00+01:00"}, "dc"),
        ({"filter": "finished > 1970-01-09T12:00"}, "a"),
        ({"filter": "finished = null"}, "dc"),
        ({"filter": "metrics.lml > -2"}, "a"),
        ({"filter": "metrics.lml < -2"}, "ba"),
        ({"filter": "metrics.lml{seed=4} < -2"}, "b"),
        ({"filter": "metrics.lml{seed=5} < 2"}, ""),
        ({"filter": "metrics.lml = -5"}, "b"),
        ({"filter": "not metrics.lml < 0"}, "dc"),
        ({"filter": "metrics.lml = null"}, "c"),
        ({"filter": "spec.model.latent_dim = 1"}, "a"),
        ({"filter": "spec.model.latent_dim in (1, 2.0)"}, "dcba"),
        ({"filter": "spec.model.latent_dim > 1"}, "dcb"),
        ({"filter": "spec.model.latent_dim != 1"}, "dcb"),
        ({"filter": "spec.seeds = 2"}, "ba"),
        ({"filter": "spec.seeds <= 1"}, "a"),
        ({"filter": "spec.evaluate.convergence = true"}, "c"),
        ({"filter": "spec.compute.device = cpu and spec.train = null"}, "dcba"),
        ({"filter": "spec.model.latent_dim = '1'"}, ""),
        ({"order_by": "created"}, "abcd"),
        ({"order_by": "name desc"}, "cba"),
        ({"order_by": "finished"}, "ba"),
        ({"order_by": "finished DESC"}, "ab"),
        ({"order_by": "metrics.lml"}, "ab"),
        ({"order_by": "metrics.lml desc"}, "ab"),
        ({"order_by": "metrics.lml{seed=4} asc"}, "ba"),
        ({"order_by": "metrics.lml{seed=44}"}, "a"),
    ],
    ids=str,
)
def test_filters_of_the_list(filled: Database, wanted: dict[str, Any], names: str) -> None:
    assert found(filled, **wanted) == names


WALKS: list[dict[str, Any]] = [
    {},
    {"order_by": "created"},
    {"order_by": "name"},
    {"order_by": "name desc"},
    {"order_by": "metrics.lml"},
    {"order_by": "metrics.lml desc"},
    {"order_by": "finished"},
    {"whose": Whose.ALL, "filter": "priority < 5"},
]


def test_texts_are_read_for_a_page_whose_size_is_known(either: Database) -> None:
    """500 notes took 60 KB each. An experiment that was deleted meanwhile is left out."""
    ids = [submitted(either, note=f"n{i}" * 150) for i in range(3)]
    with either.snapshot() as session:
        page = page_of(session, 1, Wanted(), limit=10).items
        assert not {"note", "spec"} & {name for one in page for name in vars(one)}
        loaded = load_texts(session, [Experiment(id="deleted meanwhile"), *page])
        assert [one.id for one in loaded] == ids[::-1]
        assert [one.note for one in loaded] == [f"n{i}" * 150 for i in (2, 1, 0)]


def test_pages_continue_after_the_last_item(either: Database) -> None:
    """Check also many experiments with the same place in the order."""
    fill(either)
    with either.transaction() as session:
        for one in page_of(session, 1, Wanted(whose=Whose.ALL), limit=10).items:
            one.created_at = 5.0
            one.name = one.name and "same"
    with either.snapshot() as session:
        for walk in WALKS:
            wanted = Wanted(**walk)
            whole = [one.id for one in page_of(session, 1, wanted, limit=10).items]
            page = page_of(session, 1, wanted, limit=1)
            seen = [one.id for one in page.items]
            while page.next_cursor is not None:
                page = page_of(session, 1, wanted, limit=1, cursor=page.next_cursor)
                seen += [one.id for one in page.items]
            assert seen == whole, walk
            assert len({*whole}) == len(whole) >= 2, walk


@pytest.mark.parametrize(
    ("text", "column", "told"),
    [
        ("stats = 1", 1, "no field stats: did you mean status? there are id, name"),
        ("name = a and stauts = x", 14, "did you mean status?"),
        ("status = suceeded", 10, "did you mean succeeded? there are queued"),
        ("status > queued", 1, "status has no order"),
        ("status = null", 1, "never"),
        ("family = vea", 10, "did you mean vae?"),
        ("metrics.lmll > 1", 1, "no metric lmll: did you mean lml? there are lml"),
        ("metrics.lml > x", 15, "is a number, not x"),
        ("metrics.lml ~ 1", 1, "allows ="),
        ("metrics.lml{sed=4} > 1", 17, "did you mean seed? there are seed, model"),
        ("name{seed=4} = a", 1, "only metrics have"),
        ("spec.model.latentdim = 1", 1, "did you mean spec.model.latent_dim? beside it are model."),
        ("spec.model.latent_dim > x", 25, "is a number, not x"),
        ("tag ~ x", 1, "tag allows = != in"),
        ("owner > a", 1, "owner allows = != in"),
        ("created > yesterday", 11, "is a date as 2026-01-31"),
        ("created > 2026-13-01", 11, "is a date as 2026-01-31"),
        ("priority = high", 12, "is a number, not high"),
        ("priority = 1e999", 12, "too large for a number"),
        ("pinned = 1", 10, "is true or false"),
        ("priority ~ 1", 1, "~ is for text"),
        ("name =", 7, "expected a date, a number, a word, text in quotes, not the end"),
        ("name == a", 7, "not '='"),
        ("name = a b", 10, "expected and, or, the end, not 'b'"),
        ("(name = a", 10, "expected )"),
        (" " * 30 + "\n!!", 32, "not '!!'"),
        ("name = a\n  and\n  and b", 22, "not 'b'"),
        ("", 1, "not the end"),
        ("name = 'a", 8, 'not "\'a"'),
        ("not " * 20 + "name = a", 81, "nest at most 20 deep"),
        (" or ".join(["name = a"] * 51), 1, "at most 50 comparisons, not 51"),
        (f"tag in ({','.join('1' * 990)})", 1, "at most 200 values in lists, not 990"),
        (
            f"metrics.lml{{seed=4}} in (1) and spec.seeds in ({','.join('1' * 200)})",
            1,
            "at most 200 values in lists, not 201",
        ),
    ],
)
def test_meaningless_filters_are_refused(
    filled: Database, text: str, column: int, told: str
) -> None:
    with pytest.raises(ApiError) as caught:
        found(filled, filter=text)
    (problem,) = caught.value.problems
    assert problem.pointer == "/query/filter"
    assert problem.detail.startswith(f"column {column}: ")
    assert told in problem.detail


@pytest.mark.parametrize("field", ["spec.seeds", "metrics.lml{seed=4}", "priority", "tag"])
def test_a_list_of_many_values_is_answered(filled: Database, field: str) -> None:
    """SQLite takes a thousand nested comparisons; a list of 990 values was an internal error."""
    assert found(filled, filter=f"{field} in ({','.join('9' * 200)})") == ""


@pytest.mark.parametrize(
    ("text", "column", "told"),
    [
        ("nam", 1, "there are created, finished, name, metrics.NAME"),
        ("name{seed=4}", 1, "there are created"),
        ("name up", 6, "expected asc or desc"),
        ("metrics.lmll", 1, "did you mean lml?"),
        ("metrics.lml{sed=4}", 17, "did you mean seed?"),
    ],
)
def test_meaningless_orders_are_refused(
    filled: Database, text: str, column: int, told: str
) -> None:
    with pytest.raises(ApiError) as caught:
        found(filled, order_by=text)
    (problem,) = caught.value.problems
    assert problem.pointer == "/query/order_by"
    assert problem.detail.startswith(f"column {column}: ")
    assert told in problem.detail


def test_a_metric_that_may_yet_be_recorded_is_not_refused(either: Database) -> None:
    submitted(either)
    assert found(either, filter="metrics.lml > 0", order_by="metrics.lml") == ""


COMPARED = (
    "name = '{}'",
    "tag = '{}'",
    "owner = '{}'",
    "metrics.lml{{seed='{}'}} > 0",
    "spec.data.source = '{}'",
)


@pytest.mark.parametrize("text", ['"; DROP TABLE users; --', "%", "_", "\\", "\0", "\ud800", "{}"])
def test_search_text_is_taken_literally(filled: Database, text: str) -> None:
    for one in COMPARED:
        assert found(filled, filter=one.format(text)) == ""
    assert found(filled, name=text, tag=[text], q=text, owner=text) == ""
    assert found(filled, q="'; DROP TABLE users; --") == ""
