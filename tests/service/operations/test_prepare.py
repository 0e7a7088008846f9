"""`mpt migrate` names the users who store more than their limit."""

import pytest
from sqlalchemy.orm import Session

from service.accounts.models import User
from service.datasets.models import Dataset
from service.db.engine import Database
from service.fair_share import FairShare
from service.operations import prepare
from service.settings import Settings

GIB = 2**30


@pytest.fixture
def store(place: Settings) -> Settings:
    """A store with three users: one above the limit of all users, and one above her own."""
    with Database(place.url).transaction() as session:
        session.add_all(
            [User(id=2, name="ann", max_bytes=1000), User(id=3, name="bob", max_bytes=100 * GIB)]
        )
        session.flush()
        for owner_id, size in ((1, 30 * GIB), (2, 1001), (3, 30 * GIB)):
            upload(session, owner_id, size)
    return place


def upload(session: Session, owner_id: int, size: int) -> None:
    of_file = {"name": "a", "format": "csv", "bytes": size, "sha256": f"{owner_id}", "n": 1}
    session.add(Dataset(id=f"{owner_id}", owner_id=owner_id, kept_bytes=size, **of_file))


def printed(settings: Settings, capsys: pytest.CaptureFixture[str]) -> list[str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prepare, "from_environment", lambda: settings)
        prepare.main()
    return capsys.readouterr().out.splitlines()


def test_a_migration_prints_the_users_above_their_limit(
    store: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    """With their bytes, and the command that raises the limit; at each migration."""
    for _ in range(2):
        ann, local = printed(store, capsys)
        for line, name, size, most in (
            (ann, "ann", 1001, 1000), (local, "local", 30 * GIB, 20 * GIB)
        ):  # fmt: skip
            assert f"{size:,}" in line
            assert f"{most:,}" in line
            assert f"mpt admin user set {name} --max-bytes" in line
    unlimited = store.model_copy(update={"share": FairShare(max_bytes=None)})
    (line,) = printed(unlimited, capsys)
    assert "user ann" in line
