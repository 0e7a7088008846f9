"""Limits on a user's stored data and simultaneous uploads."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient
from pydantic import ValidationError

from mptcore.presets import PRESETS
from service.app import create_app
from service.datasets.routes import MAX_USER_UPLOADS, _Arrival
from service.db.engine import Database
from service.fair_share import FairShare
from service.places import Places
from service.queue.quota import UNLIMITED, Room
from service.queue.sizes import POINT_BYTES
from service.settings import Settings
from tests.support.kept_bytes import bytes_agree, bytes_in_tables
from tests.support.uploads import GOOD, npy, post, stored

pytestmark = pytest.mark.usefixtures("inspected_here")

ONE = len(npy(GOOD))


@pytest.fixture
def narrow(place: Settings) -> Settings:
    """Room for two uploads and a little more."""
    return place.model_copy(update={"share": FairShare(max_bytes=2 * ONE + 10)})


@pytest.fixture
def api(narrow: Settings) -> Iterator[TestClient]:
    key = narrow.key_file.read_text().strip()
    with TestClient(create_app(narrow), headers={"Authorization": f"Bearer {key}"}) as client:
        yield client


def test_uploads_end_with_the_quota_and_go_on_after_a_delete(
    api: TestClient, narrow: Settings
) -> None:
    first, second = (post(api, "a.npy", npy(GOOD + i)) for i in range(2))
    assert (first.status_code, second.status_code) == (201, 201)
    refused = post(api, "a.npy", npy(GOOD + 2))
    assert (refused.status_code, refused.json()["reason"]) == (409, "storage_quota")
    for words in (f"you keep {2 * ONE}", f"this needs {ONE}", f"limit is {2 * ONE + 10}",
                  "mpt admin user set NAME --max-bytes"):  # fmt: skip
        assert words in refused.json()["detail"]
    assert len(stored(narrow)) == 2
    assert api.delete(f"/v1/datasets/{first.json()['id']}").status_code == 204
    assert post(api, "a.npy", npy(GOOD + 2)).status_code == 201


def test_the_description_of_an_upload_counts(api: TestClient, narrow: Settings) -> None:
    """A file of 600 bytes may have 100,000 constant columns, whose indices are a megabyte."""
    wide = npy(np.zeros((1, 600), dtype=np.uint8))
    refused = post(api, "a.npy", wide)
    assert (refused.status_code, refused.json()["reason"]) == (409, "storage_quota")
    described = len(json.dumps({"": [*map(str, range(600))]}))
    assert f"this needs {len(wide) + described}, and" in refused.json()["detail"]
    assert stored(narrow) == []
    small = post(api, "a.npy", npy(np.zeros((1, 4), dtype=np.uint8))).json()
    database: Database = api.app.state.database  # type: ignore[attr-defined]
    for is_there in (True, False):
        with database.snapshot() as session:
            assert bytes_agree(session)
            assert bool(bytes_in_tables(session)) == is_there
        api.delete(f"/v1/datasets/{small['id']}")


def test_a_body_that_does_not_say_its_size_is_counted_as_it_comes(
    api: TestClient, narrow: Settings
) -> None:
    pieces = iter([b"\xff" * ONE] * 3)  # its content would be refused if it were read
    answer = api.post("/v1/datasets", params={"name": "a.npy"}, content=pieces)
    assert answer.json()["reason"] == "storage_quota"
    assert stored(narrow) == []


def test_two_uploads_at_once_do_not_share_the_last_space(
    api: TestClient, narrow: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both saw the room when they began."""
    assert post(api, "a.npy", npy(GOOD)).status_code == 201
    begin = _Arrival.begin

    def beginning(*arguments: Any) -> Room:
        begin(*arguments)
        return UNLIMITED

    monkeypatch.setattr(_Arrival, "begin", beginning)
    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(lambda i: post(api, "a.npy", npy(GOOD + i)), (1, 2)))
    assert sorted(answer.status_code for answer in answers) == [201, 409]
    assert len(stored(narrow)) == 2


def test_few_uploads_of_a_user_are_received_at_once(api: TestClient) -> None:
    places: Places = api.app.state.uploads  # type: ignore[attr-defined]
    portal = api.portal
    assert portal is not None
    with ExitStack() as held:
        for _ in range(MAX_USER_UPLOADS):
            held.enter_context(portal.wrap_async_context_manager(places.place(1)))
        refused = post(api, "a.npy", npy(GOOD))
        assert (refused.status_code, refused.json()["reason"]) == (429, "too_many_uploads")
        assert refused.headers["Retry-After"] == "5"
    assert post(api, "a.npy", npy(GOOD)).status_code == 201


def test_a_user_stores_20_gib_unless_the_settings_say_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert Settings().share.max_bytes == 20 * 2**30
    for variable, limit in (("none", None), ("0", 0), ("5000000000000", 5 * 10**12)):
        monkeypatch.setenv("MPT_SHARE__MAX_BYTES", variable)
        assert Settings().share.max_bytes == limit
    monkeypatch.setenv("MPT_SHARE__MAX_BYTES", "unlimited")
    with pytest.raises(ValidationError, match="max_bytes"):
        Settings()


def test_all_runs_of_the_presets_fit_into_the_limit_of_a_user() -> None:
    """`mpt reproduce` queues them at once, and each counts with its maximum until it ends."""
    specs = [spec for preset in PRESETS.values() for spec in preset.specs]
    points = sum(spec.point_count().total for spec in specs)
    needed = points * POINT_BYTES + sum(spec.artifact_bytes() for spec in specs)
    assert Room(0, 0, FairShare().max_bytes).holds(needed)
