"""Actions that an answer lists in `can`: requests for these are accepted, and others refused."""

from typing import Any

import pytest
from fastapi.testclient import TestClient

from service.vocabulary import Action, DesiredState, Status
from tests.support.callers import bearer, database_of, member
from tests.support.ppca_spec import ppca_spec
from tests.support.stored import change

STATES = [
    (Status.QUEUED, DesiredState.RUN, False, "pause cancel change delete"),
    (Status.RUNNING, DesiredState.RUN, False, "pause cancel change"),
    (Status.PAUSED, DesiredState.RUN, False, "resume cancel change delete"),
    (Status.SUCCEEDED, DesiredState.RUN, False, "change delete"),
    (Status.FAILED, DesiredState.RUN, False, "retry change delete"),
    (Status.CANCELLED, DesiredState.RUN, False, "retry change delete"),
    (Status.RUNNING, DesiredState.PAUSE, False, "resume cancel change"),
    (Status.RUNNING, DesiredState.CANCEL, False, "change"),
    (Status.QUEUED, DesiredState.RUN, True, "pause cancel change"),
    (Status.SUCCEEDED, DesiredState.RUN, True, "change"),
]
CALLERS = {
    "owner": {"pause", "cancel", "change", "delete"},
    "submits": {"change"},
    "cancels": {"pause", "cancel", "delete"},
    "reads": set(),
    "colleague": set(),
    "admin": {"pause", "cancel", "change", "delete"},
}


def submit(api: TestClient, **headers: str) -> str:
    body = {"spec": ppca_spec(), "cache": False, "visibility": "lab"}
    made: str = api.post("/v1/experiments", json=body, headers=headers).json()["id"]
    return made


def take(api: TestClient, experiment_id: str, action: Action, headers: dict[str, str]) -> int:
    path = f"/v1/experiments/{experiment_id}"
    match action:
        case Action.CHANGE:
            answer = api.patch(path, json={"note": "new"}, headers=headers)
        case Action.DELETE:
            answer = api.delete(path, headers=headers)
        case _:
            answer = api.post(f"{path}:{action}", headers=headers)
    return answer.status_code


def state(api: TestClient, experiment_id: str) -> tuple[Any, ...]:
    document = api.get(f"/v1/experiments/{experiment_id}").json()
    return tuple(document[name] for name in ("status", "desired_state", "note"))


def check(api: TestClient, experiment_id: str, action: Action, headers: dict[str, str]) -> set[str]:
    """Return `can` of an experiment, after a check whether the action is in it if it is accepted
    and changes something."""
    listed = api.get("/v1/experiments?whose=lab", headers=headers).json()["items"]
    can: set[str] = {*next(one["can"] for one in listed if one["id"] == experiment_id)}
    before = state(api, experiment_id)
    status_code = take(api, experiment_id, action, headers)
    assert action != Action.RETRY or action in can or status_code in (403, 409)
    if action in can:
        assert status_code in (200, 202, 204)
    elif status_code not in (403, 409):
        assert state(api, experiment_id) == before  # it was so already
    return can


@pytest.mark.parametrize(("status", "desired_state", "pinned", "can"), STATES)
def test_what_the_state_allows_is_accepted_and_the_rest_refused(
    shared_api: TestClient, status: Status, desired_state: DesiredState, pinned: bool, can: str
) -> None:
    for action in Action:
        one = submit(shared_api)
        values = {"status": status, "desired_state": desired_state, "pinned": pinned}
        change(database_of(shared_api), one, **values)
        assert check(shared_api, one, action, {}) == set(can.split())


@pytest.mark.parametrize("caller", CALLERS)
def test_only_actions_of_the_role_and_the_key_are_listed(api: TestClient, caller: str) -> None:
    key = member(api)["key"]
    scopes = {"submits": ["read", "submit"], "cancels": ["read", "cancel"], "reads": ["read"]}
    headers = {"owner": bearer(key), "admin": {}}.get(caller)
    if caller == "colleague":
        api.post("/v1/users", json={"name": "bob"})
        headers = bearer(api.post("/v1/users/bob/keys", json={}).json()["key"])
    elif headers is None:
        body = {"scopes": scopes[caller]}
        headers = bearer(api.post("/v1/users/ann/keys", json=body).json()["key"])
    for action in Action:
        one = submit(api, **bearer(key))
        assert check(api, one, action, headers) == CALLERS[caller]
