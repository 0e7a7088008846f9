"""The table of uploads."""

from functools import cached_property, partial
from typing import Any

from sqlalchemy import JSON, BigInteger, ForeignKey, String, UniqueConstraint
from sqlalchemy.orm import (
    Mapped,
    column_property,
    mapped_column,
    object_session,
    relationship,
)

from service.accounts.models import OWN, User, name_of
from service.db.engine import Base, now
from service.db.visibility import Owned

contents = partial(mapped_column, deferred=True, deferred_group="contents")
"""Column that may be megabytes. All of a row are loaded when one of them is used."""


CONTENTS = ("arrays", "columns", "constant", "missing", "reading")
"""Columns that describe the contents of a file."""


class Dataset(Owned, Base):
    """A file in the store, `datasets/<id>/data.<format>`. `n` and `dim` are those of its first
    array; an .npz has the shapes of all in `arrays`, a table its column names in `columns`. Text
    has no `dim`; `n` then counts texts, and `columns` names the columns with text."""

    noun = "data set"
    __tablename__ = "datasets"
    __table_args__ = (UniqueConstraint("owner_id", "sha256", "format", "options_sha256", "copy"),)

    owner_id: Mapped[int] = mapped_column(ForeignKey(User.id), index=True)
    owner: Mapped[User] = relationship(lazy="raise")
    project_id: Mapped[int] = mapped_column(default=OWN, server_default="0")
    """Project whose members may read it, if its visibility says so; 0: none. Its bytes count for
    its owner and the project."""
    project: Mapped[str | None] = column_property(name_of(project_id))
    name: Mapped[str] = mapped_column(String(200))
    format: Mapped[str] = mapped_column(String(16))
    bytes: Mapped[int] = mapped_column(BigInteger)
    sha256: Mapped[str] = mapped_column(String(64))
    n: Mapped[int]
    dim: Mapped[int | None]
    arrays: Mapped[dict[str, Any] | None] = contents(JSON())
    columns: Mapped[list[str] | None] = contents(JSON())
    constant: Mapped[dict[str, list[str]] | None] = contents(JSON(none_as_null=True))
    """Constant columns by array, "" for the only one: names, or indices where there are none.
    Unknown for uploads of version 0.1."""
    missing: Mapped[dict[str, dict[str, int]] | None] = contents(JSON(none_as_null=True))
    """Number of missing values of each column that has some, by array, as in `constant`."""
    reading: Mapped[dict[str, Any] | None] = contents(JSON(none_as_null=True))
    """Facts on how a file of numbers is read, see `mptcore.data.uploads.Inspection`. Unknown for
    uploads of version 0.2."""
    options_sha256: Mapped[str] = mapped_column(String(64), default="", server_default="")
    """Digest of the options that a table was uploaded with. Empty for other formats, and for
    uploads of version 0.2, which are never taken for new ones."""
    created_at: Mapped[float] = mapped_column(default=now())
    kept_bytes: Mapped[int] = mapped_column(BigInteger, default=0, server_default="0")
    """Bytes of the file, and of the names and counts in this row."""
    copy: Mapped[int] = mapped_column(default=0, server_default="0")
    """0, except for identical bytes that older versions stored as another data set."""

    @property
    def file(self) -> str:
        """Name of the file in its folder."""
        return f"data.{self.format}"

    @property
    def digest(self) -> str:
        """Digest of the bytes and of the options that they are read with."""
        return self.sha256 + self.options_sha256

    @cached_property
    def column_names(self) -> frozenset[str]:
        """The names of `columns`, as a set: each point of a sweep is checked against them."""
        return frozenset(self.columns or ())

    @cached_property
    def constant_names(self) -> dict[str, dict[str, None]]:
        """The columns of `constant`, in a dict for each array."""
        return {array: dict.fromkeys(names) for array, names in (self.constant or {}).items()}


def forget_contents(dataset: Dataset) -> None:
    """Free the memory of a row's contents. They are loaded again when one of them is used."""
    if (session := object_session(dataset)) is not None:
        session.expire(dataset, CONTENTS)
        for name in ("column_names", "constant_names"):
            vars(dataset).pop(name, None)
