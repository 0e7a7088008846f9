"""Owners of keys, invalid keys, and the file with the first key."""

import re
import tempfile
from pathlib import Path

import pytest
from sqlalchemy import func, select

from service.accounts.models import ApiKey
from service.accounts.users import KeyRefused, caller_of_key, callers_of_keys, ensure_key
from service.db.engine import Database
from service.vocabulary import ROLE_SCOPES, Role

KEY = "mpt_[0-9a-f]{16}_[0-9a-f]{64}_[0-9A-Za-z]{6}"


def key_of(database: Database, name: str, file: Path) -> str:
    with database.transaction() as session:
        ensure_key(session, name, file)
    return file.read_text().strip()


def owner(database: Database, key: str) -> str | None:
    with database.snapshot() as session:
        try:
            return caller_of_key(session, key)[0].name
        except KeyRefused:
            return None


def test_a_key_belongs_to_its_user_and_a_changed_one_to_nobody(
    database: Database, tmp_path: Path
) -> None:
    key, other = (key_of(database, name, tmp_path / name) for name in ("ada", "bob"))
    assert (owner(database, key), owner(database, other)) == ("ada", "bob")
    prefix, key_id, secret, check = key.split("_")
    for changed in (
        f"{prefix}_{key_id}_{secret[:-1]}_{check}", f"{prefix}_{key_id}_{secret}0_{check}",
        f"{prefix}_{key_id}_{secret.upper()}_{check}", f"{prefix}_{key_id}_{secret}",
        f"{prefix}_{key_id}_{secret}_", f"{prefix}_{key_id}_{secret}_{check}_",
        f"{prefix}_{key_id}_", f"{prefix}_{key_id}", f"MPT_{key_id}_{secret}_{check}",
        f"_{key_id}_{secret}_{check}", f"{prefix}_{'0' * 16}_{secret}_{check}",
        f"{prefix}__{secret}_{check}", f"{prefix}_{key_id}_{secret}é_{check}",
        f"{prefix}_{key_id}_{secret}\udc80_{check}", f"{prefix}_{key_id}é_{secret}_{check}",
        f"{prefix}_{key_id} _{secret}_{check}", other.replace(other.split("_")[1], key_id), "",
    ):  # fmt: skip
        assert owner(database, changed) is None, changed


def test_a_new_key_is_random_only_for_its_user_and_kept(database: Database, tmp_path: Path) -> None:
    keys = [key_of(database, name, tmp_path / name) for name in ("a", "b")]
    assert [key_of(database, name, tmp_path / name) for name in ("a", "b")] == keys
    assert all(re.fullmatch(KEY, key) for key in keys)
    assert all(x != y for x, y in zip(*(key.split("_")[1:] for key in keys), strict=True))
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o600
    assert sorted(file.name for file in tmp_path.iterdir() if file.is_file()) == ["a", "b"]
    with database.snapshot() as session:
        assert session.scalar(select(func.count()).select_from(ApiKey)) == 3  # one is of the store


def test_a_key_is_written_on_the_disk_where_it_stays(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file on another disk could not be renamed to it."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "another disk"))
    assert owner(database, key_of(database, "ada", tmp_path / "key")) == "ada"


@pytest.mark.parametrize("key", ["mpt_Az09_secretAZ09", f"mpt_{'a' * 16}_b"])
def test_a_key_missing_in_the_database_is_restored_from_its_file(
    database: Database, tmp_path: Path, key: str
) -> None:
    file = tmp_path / "key"
    file.write_text(f"{key}\n")
    assert key_of(database, "eve", file) == key
    assert owner(database, key) == "eve"


NO_KEYS = ["", "mpt_a_", "mpt__a", "mpt_a_b-", "xmpt_a_b", f"mpt_{'a' * 17}_a"]


@pytest.mark.parametrize("content", NO_KEYS)
def test_a_file_with_an_incomplete_key_is_replaced(
    database: Database, tmp_path: Path, content: str
) -> None:
    file = tmp_path / "key"
    file.write_text(content)
    key = key_of(database, "eve", file)
    assert re.fullmatch(KEY, key)
    assert owner(database, key) == "eve"


@pytest.mark.parametrize("role", Role)
def test_a_key_of_the_store_has_the_scopes_of_its_users_role(
    database: Database, tmp_path: Path, role: Role
) -> None:
    with database.transaction() as session:
        user, key = ensure_key(session, "new", tmp_path / "key", role)
        assert user.role == role
        assert key is not None
        assert (key.user_id, set(key.scopes)) == (user.id, {*ROLE_SCOPES[role]})


def test_owners_of_several_keys(database: Database, tmp_path: Path) -> None:
    """Only valid keys among the requested ones are returned."""
    names = ("ada", "bob", "cy", "di")
    ids = {name: key_of(database, name, tmp_path / name).split("_")[1] for name in names}
    with database.transaction() as session:
        session.get_one(ApiKey, ids["bob"]).revoked_at = 1.0
        session.flush()
        callers = callers_of_keys(session, [ids["ada"], ids["bob"], ids["cy"], "0" * 16])
        assert {key_id: caller.name for key_id, caller in callers.items()} == {
            ids["ada"]: "ada", ids["cy"]: "cy",
        }  # fmt: skip
