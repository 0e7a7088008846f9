"""Tables of users and API keys."""

from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    ForeignKey,
    Index,
    LargeBinary,
    ScalarSelect,
    String,
    false,
    select,
)
from sqlalchemy.orm import Mapped, mapped_column

from service.db.engine import Base, now
from service.vocabulary import Role


class User(Base):
    """A user, who owns experiments."""

    __tablename__ = "users"
    __table_args__ = (
        Index("ix_users_oidc_issuer_oidc_subject", "oidc_issuer", "oidc_subject", unique=True),
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(100), unique=True)
    """Never changes, because the audit log refers to it."""
    created_at: Mapped[float] = mapped_column(default=now())
    role: Mapped[str] = mapped_column(String(16), default=Role.MEMBER, server_default="member")
    disabled_at: Mapped[float | None]
    """Time since which the user's keys are refused."""
    disabled_for: Mapped[str | None] = mapped_column(String(16))
    """One of DisabledFor if the service has disabled the user, None if an admin has."""
    oidc_issuer: Mapped[str | None] = mapped_column(String(500))
    oidc_subject: Mapped[str | None] = mapped_column(String(255))
    """The account that signs the user in: the issuer and its `sub`, which never change."""
    shares: Mapped[int] = mapped_column(default=1, server_default="1")
    """Slurm's RawShares: while both wait, a user with 2 shares gets twice as much as one with 1."""
    max_running: Mapped[int | None]
    max_submitted: Mapped[int | None]
    max_gpu_hours_a_day: Mapped[float | None]
    max_bytes: Mapped[int | None] = mapped_column(BigInteger)
    """Maximum number of stored bytes. The limits of a user override those of the settings."""
    may_jump: Mapped[bool] = mapped_column(default=False, server_default=false())
    """Allows priorities above 100, which run before everyone else's."""


OWN = 0
"""Stands for a project where there is none: the experiment is its owner's own."""


class Project(Base):
    """A group of users with shares and limits of its own. Its id is never 0, and it is never
    deleted, because experiments and usage refer to it."""

    __tablename__ = "projects"

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(100), unique=True)
    """Never changes, because the audit log refers to it."""
    created_at: Mapped[float] = mapped_column(default=now())
    closed_at: Mapped[float | None]
    """Time since which it accepts no experiments. Those that it has still run."""
    shares: Mapped[int] = mapped_column(default=1, server_default="1")
    """Weight of all its members together, against users' own experiments and other projects."""
    max_running: Mapped[int | None]
    max_submitted: Mapped[int | None]
    max_gpu_hours_a_day: Mapped[float | None]
    max_bytes: Mapped[int | None] = mapped_column(BigInteger)
    """The limits count the experiments of all members in it. Null: no limit."""


def name_of(project_id: Mapped[int]) -> "ScalarSelect[str]":
    """Select the name of the project in a column; null for 0."""
    name = select(Project.name).where(Project.id == project_id)
    return name.correlate_except(Project).scalar_subquery()


class ProjectMember(Base):
    """A member of a project, also a former one, whose experiments in the project still run."""

    __tablename__ = "project_members"

    project_id: Mapped[int] = mapped_column(ForeignKey("projects.id"), primary_key=True)
    user_id: Mapped[int] = mapped_column(ForeignKey("users.id"), primary_key=True, index=True)
    left_at: Mapped[float | None]
    """Null for a present member."""


class ApiKey(Base):
    """An API key. Only the SHA-256 of its secret is stored."""

    __tablename__ = "api_keys"

    id: Mapped[str] = mapped_column(String(16), primary_key=True)
    user_id: Mapped[int] = mapped_column(ForeignKey("users.id"), index=True)
    name: Mapped[str | None] = mapped_column(String(200))
    secret_sha256: Mapped[bytes] = mapped_column(LargeBinary(32))
    scopes: Mapped[list[str]] = mapped_column(JSON)
    created_at: Mapped[float] = mapped_column(default=now())
    expires_at: Mapped[float | None]
    revoked_at: Mapped[float | None]
    last_used_at: Mapped[float | None]
    link_used_at: Mapped[float | None]
    """Time at which the last sign-in link that was used had been made. Earlier links are void."""
    authenticated_at: Mapped[float | None]
    """Time at which the provider of the lab's accounts asked for a password, 0 if it did not say.
    Such a key is one sign-in of a browser, and its text is known to nobody. None: a key of
    programs."""


class AuditEntry(Base):
    """An entry of the log, written in the transaction of the action."""

    __tablename__ = "audit"

    id: Mapped[int] = mapped_column(primary_key=True)
    at: Mapped[float] = mapped_column(default=now())
    actor: Mapped[str] = mapped_column(String(100))
    """Name of a user or, without a key, of a process of the service."""
    key_id: Mapped[str | None] = mapped_column(String(16))
    action: Mapped[str] = mapped_column(String(40))
    """Kind of the object, a dot, and the verb: experiment.cancelled."""
    object_id: Mapped[str] = mapped_column(String(100), index=True)
    details: Mapped[dict[str, Any]] = mapped_column(JSON)
