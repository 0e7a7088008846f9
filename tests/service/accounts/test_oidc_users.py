"""Which user signs in by an account of the provider, with which role and projects."""

import shlex
from collections.abc import Iterator

import pytest
from fastapi.testclient import TestClient

from service.app import create_app
from service.settings import Settings
from tests.support.callers import bearer
from tests.support.oidc_provider import RealProvider, with_provider
from tests.support.signing_in import (
    LAPTOP,
    OWN,
    as_admin,
    refused,
    sign_in,
)

ROLES = {"chairs": "admin", "staff": "member", "students": "viewer"}


@pytest.fixture
def strict(place: Settings, provider: RealProvider) -> Iterator[TestClient]:
    """A browser at a service whose roles are those of groups. New users wait for a yes."""
    settings = with_provider(place, provider, oidc_roles=ROLES, oidc_new_users="wait")
    with TestClient(create_app(settings), raise_server_exceptions=False) as client:
        yield client


def actions_on(browser: TestClient, name: str) -> list[str]:
    """The actions on a user in the audit log, the oldest first."""
    items = as_admin(browser, "GET", f"/v1/audit?object_id={name}").json()["items"]
    return [line["action"] for line in reversed(items)]


def approve(browser: TestClient, name: str) -> None:
    assert as_admin(browser, "PATCH", f"/v1/users/{name}", active=True).status_code == 200


def test_a_first_sign_in_waits_for_an_admins_yes(strict: TestClient) -> None:
    for _ in range(2):
        assert refused(sign_in(strict), "waits for the yes")
        assert strict.get("/v1/me").status_code == 401
    ann = as_admin(strict, "GET", "/v1/users").json()["items"][0]
    assert (ann["name"], ann["active"], ann["disabled_for"]) == ("ann", False, "approval")
    approve(strict, "ann")
    assert sign_in(strict).status_code == 204
    assert actions_on(strict, "ann") == ["user.added", "user.waits_for_approval", "user.approved"]


def test_a_user_whom_an_admin_refused_or_disabled_stays_out(
    strict: TestClient, browser: TestClient
) -> None:
    """Whatever the groups are."""
    sign_in(strict)
    as_admin(strict, "PATCH", "/v1/users/ann", active=False)
    assert refused(sign_in(strict), "disabled")
    approve(strict, "ann")
    assert sign_in(strict).status_code == 204
    as_admin(strict, "PATCH", "/v1/users/ann", active=False)
    assert strict.get("/v1/me").status_code == 401
    assert refused(sign_in(strict), "disabled")


def test_groups_give_the_highest_role_at_each_sign_in(
    strict: TestClient, provider: RealProvider
) -> None:
    sign_in(strict)
    approve(strict, "ann")
    for groups, role in (
        (["staff"], "member"),
        (["students"], "viewer"),
        (["others", "students", "chairs", "staff"], "admin"),
        (["students", "staff"], "member"),
    ):
        provider.add("ann", groups=groups)
        assert sign_in(strict).status_code == 204
        assert strict.get("/v1/me").json()["role"] == role
    assert actions_on(strict, "ann")[3:] == ["user.role_changed"] * 3


def test_claims_of_the_id_token_count_before_those_of_userinfo(
    strict: TestClient, provider: RealProvider
) -> None:
    provider.forge(preferred_username="ida", userinfo={"preferred_username": "bob"})
    assert refused(sign_in(strict), "user set ida --active")


def test_groups_give_the_projects_of_the_table_at_each_sign_in(
    place: Settings, provider: RealProvider
) -> None:
    """Projects that the table does not name stay as they are, and one that does not exist refuses
    no sign-in."""
    table = {"vision": "vision", "robots": "vision", "speech": "speech", "staff": "missing"}
    settings = with_provider(place, provider, oidc_projects=table)
    with TestClient(create_app(settings), raise_server_exceptions=False) as browser:
        sign_in(browser)
        for name, members in (("vision", []), ("speech", ["ann"]), ("own", ["ann"])):
            as_admin(browser, "POST", "/v1/projects", name=name, members=members)
        for groups, names in (
            (["staff", "vision"], ["own", "vision"]),
            (["robots", "speech"], ["own", "speech", "vision"]),
            (["staff"], ["own"]),
        ):
            provider.add("ann", groups=groups)
            assert sign_in(browser).status_code == 204
            projects = browser.get("/v1/projects").json()["items"]
            assert [one["name"] for one in projects] == names
        expected = ["project.added", "project.joined", "project.left"]
        assert actions_on(browser, "vision") == expected


def test_who_leaves_the_groups_loses_access_at_the_next_sign_in(
    strict: TestClient, provider: RealProvider
) -> None:
    """Keys of programs, too. Who returns has all of it again."""
    sign_in(strict)
    approve(strict, "ann")
    sign_in(strict, fresh=True)
    body = {"name": "laptop", "lasts_days": 30}
    key = strict.post("/v1/me/keys", json=body, headers=OWN).json()["key"]
    for groups in (["others"], [], None):
        provider.add("ann", groups=groups)
        assert refused(sign_in(strict), "none of the groups")
        assert strict.get("/v1/me").status_code == 401
        assert strict.get("/v1/me", headers=bearer(key)).status_code == 401
    provider.add("ann", groups=["staff"])
    assert sign_in(strict).status_code == 204
    assert strict.get("/v1/me", headers=bearer(key)).status_code == 200
    assert actions_on(strict, "ann")[3:] == ["user.access_ended", "user.access_returned"]


def test_who_was_never_in_a_group_adds_no_user(strict: TestClient, provider: RealProvider) -> None:
    provider.add("eve", groups=["others"])
    assert refused(sign_in(strict, "eve"), "none of the groups")
    users = as_admin(strict, "GET", "/v1/users").json()["items"]
    assert [user["name"] for user in users] == ["local"]


def test_the_last_admin_stays_one(strict: TestClient, provider: RealProvider) -> None:
    """Neither a lower role nor the loss of all groups leaves a lab without an admin."""
    as_admin(strict, "PATCH", "/v1/users/local", oidc_subject="root")
    for groups in (["students"], []):
        provider.add("root", groups=groups)
        assert sign_in(strict, "root").status_code == 401
        assert as_admin(strict, "GET", "/v1/me").json()["role"] == "admin"


def test_the_name_of_another_user_is_refused_until_an_admin_links_the_account(
    browser: TestClient, provider: RealProvider
) -> None:
    as_admin(browser, "POST", "/v1/users", name="bob")
    provider.add("b-17", preferred_username="Bob@example.org")
    assert refused(sign_in(browser, "b-17"), "mpt admin user set bob --subject b-17")
    as_admin(browser, "PATCH", "/v1/users/bob", oidc_subject="b-17")
    assert sign_in(browser, "b-17").status_code == 204
    assert browser.get("/v1/me").json()["name"] == "bob"
    provider.add("b-18", preferred_username="bob")
    assert refused(sign_in(browser, "b-18"), "mpt admin user set bob")
    sign_in(browser)
    taken = as_admin(browser, "PATCH", "/v1/users/ann", oidc_subject="b-17")
    assert (taken.status_code, taken.json()["reason"]) == (409, "account_taken")
    as_admin(browser, "PATCH", "/v1/users/bob", oidc_subject=None)
    assert refused(sign_in(browser, "b-17"), "mpt admin user set bob")


@pytest.mark.parametrize("subject", ["another", None])
def test_a_sign_in_ends_when_its_account_is_unlinked(
    browser: TestClient, subject: str | None
) -> None:
    """Keys of programs go on: an admin decides about each."""
    sign_in(browser, fresh=True)
    key = browser.post("/v1/me/keys", json=LAPTOP, headers=OWN).json()["key"]
    as_admin(browser, "PATCH", "/v1/users/ann", oidc_subject="ann")
    assert browser.get("/v1/me").status_code == 200
    as_admin(browser, "PATCH", "/v1/users/ann", oidc_subject=subject)
    assert browser.get("/v1/me").status_code == 401
    assert browser.get("/v1/me", headers=bearer(key)).status_code == 200


def test_a_user_is_known_by_the_subject_not_by_the_name(
    browser: TestClient, provider: RealProvider
) -> None:
    provider.add("c-1", preferred_username="carl")
    sign_in(browser, "c-1")
    provider.add("c-1", preferred_username="charles")
    assert sign_in(browser, "c-1").status_code == 204
    assert browser.get("/v1/me").json()["name"] == "carl"


@pytest.mark.parametrize(
    "name", ["", "é", "-a", "a b", "@a", "a" * 65, "api", "Housekeeping@a", "\u212a"]
)
def test_a_name_that_is_no_user_name_is_refused(
    browser: TestClient, provider: RealProvider, name: str
) -> None:
    provider.add("odd", preferred_username=name)
    assert refused(sign_in(browser, "odd"), "--subject odd")


def test_an_account_without_a_name_is_refused(browser: TestClient, provider: RealProvider) -> None:
    provider.forge(preferred_username=None, userinfo={"preferred_username": None})
    assert refused(sign_in(browser), "--subject ann")


def test_an_account_cannot_be_linked_without_a_provider(api: TestClient) -> None:
    answer = api.patch("/v1/users/local", json={"oidc_subject": "a"})
    assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, "/oidc_subject")


def test_the_suggested_command_is_safe_to_paste(
    browser: TestClient, provider: RealProvider
) -> None:
    as_admin(browser, "POST", "/v1/users", name="bob")
    subject = "b'; $(reboot) \""
    provider.add(subject, preferred_username="bob")
    detail = sign_in(browser, subject).json()["detail"]
    command = detail.partition("`")[2].removesuffix("`")
    assert shlex.split(command) == ["mpt", "admin", "user", "set", "bob", "--subject", subject]
