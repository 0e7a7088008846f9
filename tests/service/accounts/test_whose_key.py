"""Owners of keys, invalid keys, and the file with the first key."""

import hashlib
import re
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import func, select

from service.accounts.models import ApiKey, User
from service.accounts.users import KeyRefused, caller_of_key, callers_of_keys, ensure_key
from service.db.engine import Database
from service.vocabulary import ROLE_SCOPES, Role


@pytest.fixture
def key(database: Database, tmp_path: Path) -> str:
    """The key of one of two users."""
    return made(database, "ada", tmp_path / "ada")


def made(database: Database, name: str, file: Path) -> str:
    with database.transaction() as session:
        ensure_key(session, name, file)
    return file.read_text().strip()


def whose(database: Database, key: str) -> str | None:
    with database.snapshot() as session:
        try:
            return caller_of_key(session, key)[0].name
        except KeyRefused:
            return None


def test_a_key_belongs_to_its_user(database: Database, key: str, tmp_path: Path) -> None:
    other = made(database, "bob", tmp_path / "bob")
    assert (whose(database, key), whose(database, other)) == ("ada", "bob")


KEY = "mpt_[0-9a-f]{16}_[0-9a-f]{64}_[0-9A-Za-z]{6}"
REFUSED: list[Callable[[str, str, str, str], str]] = [
    lambda prefix, key_id, secret, check: f"{prefix}_{key_id}_{secret[:-1]}_{check}",
    lambda prefix, key_id, secret, check: f"{prefix}_{key_id}_{secret}0_{check}",
    lambda prefix, key_id, secret, check: f"{prefix}_{key_id}_{secret.upper()}_{check}",
    lambda prefix, key_id, secret, check: f"{prefix}_{key_id}_{secret}",
    lambda prefix, key_id, secret, check: f"{prefix}_{key_id}_{secret}_",
    lambda prefix, key_id, secret, check: f"{prefix}_{key_id}_{secret}_{check}_",
    lambda prefix, key_id, secret, check: f"{prefix}_{key_id}_",
    lambda prefix, key_id, secret, check: f"{prefix}_{key_id}",
    lambda prefix, key_id, secret, check: f"MPT_{key_id}_{secret}_{check}",
    lambda prefix, key_id, secret, check: f"_{key_id}_{secret}_{check}",
    lambda prefix, key_id, secret, check: f"{prefix}_{'0' * 16}_{secret}_{check}",
    lambda prefix, key_id, secret, check: f"{prefix}__{secret}_{check}",
    lambda prefix, key_id, secret, check: f"{prefix}_{key_id}_{secret}é_{check}",
    lambda prefix, key_id, secret, check: f"{prefix}_{key_id}_{secret}\udc80_{check}",
    lambda prefix, key_id, secret, check: f"{prefix}_{key_id}é_{secret}_{check}",
    lambda prefix, key_id, secret, check: f"{prefix}_{key_id} _{secret}_{check}",
    lambda prefix, key_id, secret, check: "",
]


@pytest.mark.parametrize("spoil", REFUSED)
def test_an_incomplete_key_has_no_user(
    database: Database, key: str, spoil: Callable[[str, str, str, str], str]
) -> None:
    assert whose(database, key) == "ada"
    assert whose(database, spoil(*key.split("_"))) is None


def test_only_the_digest_of_a_secret_is_stored(database: Database, key: str) -> None:
    _, key_id, secret = key.split("_", 2)  # the checksum belongs to it
    with database.snapshot() as session:
        kept = session.get_one(ApiKey, key_id)
    assert kept.secret_sha256 == hashlib.sha256(secret.encode()).digest()
    assert (kept.user_id, kept.revoked_at) == (user_id(database, "ada"), None)
    assert abs(kept.created_at - time.time()) < 60


def user_id(database: Database, name: str) -> int:
    with database.snapshot() as session:
        return session.scalars(select(User.id).where(User.name == name)).one()


def counted(database: Database) -> tuple[int, int]:
    with database.snapshot() as session:
        users, keys = (
            session.scalar(select(func.count()).select_from(table)) for table in (User, ApiKey)
        )
    return users or 0, keys or 0


def test_a_new_key_is_random_and_only_for_its_user(database: Database, tmp_path: Path) -> None:
    first, second = (made(database, name, tmp_path / name) for name in ("a", "b"))
    for key in (first, second):
        assert re.fullmatch(KEY, key)
    assert all(x != y for x, y in zip(first.split("_")[1:], second.split("_")[1:], strict=True))
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "a").read_text() == first + "\n"
    assert sorted(file.name for file in tmp_path.iterdir() if file.is_file()) == ["a", "b"]


def test_a_key_is_written_on_the_disk_where_it_stays(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file on another disk could not be renamed to it."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "another disk"))
    assert whose(database, made(database, "ada", tmp_path / "key")) == "ada"


def test_an_existing_key_is_kept(database: Database, key: str, tmp_path: Path) -> None:
    before = counted(database)
    assert made(database, "ada", tmp_path / "ada") == key
    assert counted(database) == before


def test_a_key_missing_in_the_database_is_restored_from_its_file(
    database: Database, tmp_path: Path
) -> None:
    file = tmp_path / "key"
    file.write_text("mpt_Az09_secretAZ09\n")
    assert made(database, "eve", file) == "mpt_Az09_secretAZ09"
    assert whose(database, "mpt_Az09_secretAZ09") == "eve"


NO_KEYS = ["", "mpt_", "mpt_a_", "mpt__a", "mpt_a_b-", "xmpt_a_b", "MPT_a_b", f"mpt_{'a' * 17}_a"]


@pytest.mark.parametrize("content", NO_KEYS)
def test_a_file_with_an_incomplete_key_is_replaced(
    database: Database, tmp_path: Path, content: str
) -> None:
    file = tmp_path / "key"
    file.write_text(content)
    key = made(database, "eve", file)
    assert re.fullmatch(KEY, key)
    assert whose(database, key) == "eve"


def test_a_key_of_the_longest_id_is_kept(database: Database, tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text(f"mpt_{'a' * 16}_b")
    assert made(database, "eve", file) == f"mpt_{'a' * 16}_b"


@pytest.mark.parametrize("role", Role)
def test_a_key_of_the_store_has_the_scopes_of_its_users_role(
    database: Database, tmp_path: Path, role: Role
) -> None:
    with database.transaction() as session:
        user, key = ensure_key(session, "new", tmp_path / "key", role)
        assert user.role == role
        assert key is not None
        assert (key.name, key.user_id) == ("of the store", user.id)
        assert set(key.scopes) == {*ROLE_SCOPES[role]}


def test_owners_of_several_keys(database: Database, tmp_path: Path) -> None:
    """Only valid keys among the requested ones are returned."""
    keys = {name: made(database, name, tmp_path / name) for name in ("ada", "bob", "cy", "di")}
    ids = {name: key.split("_")[1] for name, key in keys.items()}
    with database.transaction() as session:
        session.get_one(ApiKey, ids["bob"]).revoked_at = 1.0
        session.flush()
        found = callers_of_keys(session, [ids["ada"], ids["bob"], ids["cy"], "0" * 16])
        assert {key_id: one.name for key_id, one in found.items()} == {
            ids["ada"]: "ada", ids["cy"]: "cy",
        }  # fmt: skip
