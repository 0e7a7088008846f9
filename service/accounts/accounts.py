"""Find and change users and their keys. No function commits."""

from collections.abc import Collection, Mapping, Sequence

from sqlalchemy import select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from service.accounts.keys import new_key
from service.accounts.models import ApiKey, User
from service.accounts.users import HOUSEKEEPING, PROCESS, store_key
from service.db.engine import now
from service.db.notices import notify
from service.vocabulary import Role, Scope


class LastAdmin(Exception):
    """The change would leave no admin."""


def add(session: Session, name: str, role: Role) -> User | None:
    """Add a user. Return None if the name is taken, by a user or as the name of a process."""
    if name in (PROCESS, HOUSEKEEPING):
        return None
    try:
        with session.begin_nested():  # the unique name decides between two at the same time
            user = User(name=name, role=role)
            session.add(user)
    except IntegrityError:
        return None
    session.refresh(user)
    return user


def find(session: Session, name: str) -> User | None:
    return session.scalar(select(User).where(User.name == name))


def listed(session: Session) -> Sequence[User]:
    """Return all users, by name."""
    return session.scalars(select(User).order_by(User.name)).all()


def change(
    session: Session,
    user: User,
    role: Role | None,
    active: bool | None,
    standing: Mapping[str, object],
) -> None:
    """Change a user's role, queue limits or both; disable or enable the user. Raises LastAdmin."""
    for name, value in standing.items():
        setattr(user, name, value)
    admins = select(User).where(User.role == Role.ADMIN, User.disabled_at.is_(None))
    active_admins = session.scalars(admins.with_for_update(key_share=True)).all()
    if role is not None:
        user.role = role
    if active is not None:
        user.disabled_for = None
    if active is not None and active != (user.disabled_at is None):
        session.execute(
            update(User).where(User.id == user.id).values(disabled_at=None if active else now())
        )
    session.flush()
    session.refresh(user)
    notify(session)  # queued experiments may start
    is_admin = user.role == Role.ADMIN and user.disabled_at is None
    if not is_admin and {one.id for one in active_admins} == {user.id}:
        raise LastAdmin


def link(session: Session, user: User, issuer: str, subject: str | None) -> bool:
    """Let an account sign a user in from now on, or none. The sign-ins of an earlier account end.
    Return False if the account is another user's."""
    before = user.oidc_issuer, user.oidc_subject
    try:
        with session.begin_nested():
            user.oidc_issuer = None if subject is None else issuer
            user.oidc_subject = subject
    except IntegrityError:
        return False
    if before != (user.oidc_issuer, user.oidc_subject):
        sign_ins = ApiKey.authenticated_at.is_not(None), ApiKey.revoked_at.is_(None)
        of_user = update(ApiKey).where(ApiKey.user_id == user.id, *sign_ins)
        session.execute(of_user.values(revoked_at=now()))
    return True


def keys(session: Session, user: User) -> Sequence[ApiKey]:
    """Return a user's keys, the oldest first, including revoked ones."""
    query = select(ApiKey).where(ApiKey.user_id == user.id)
    return session.scalars(query.order_by(ApiKey.created_at, ApiKey.id)).all()


def add_key(
    session: Session,
    user: User,
    *,
    name: str | None,
    scopes: Collection[Scope],
    lasts_s: float | None,
) -> tuple[ApiKey, str]:
    """Add a key for a user. Return it with its text, which is not stored."""
    key = new_key()
    return store_key(session, user, key, scopes, name=name, lasts_s=lasts_s), key


def revoke(session: Session, user: User, key_id: str) -> bool | None:
    """Revoke a user's key. Return whether it was in force, or None if the user has no such key."""
    known = session.scalar(select(ApiKey.id).where(ApiKey.id == key_id, ApiKey.user_id == user.id))
    if known is None:
        return None
    in_force = update(ApiKey).where(ApiKey.id == key_id, ApiKey.revoked_at.is_(None))
    revoked = session.execute(in_force.values(revoked_at=now()).returning(ApiKey.id))
    return revoked.one_or_none() is not None
