"""Users who sign in by an account of the provider: who may, as which user, and in which role. No
function commits."""

import logging
import re
import shlex
from collections.abc import Collection, Mapping

from sqlalchemy import delete, or_, select
from sqlalchemy.orm import Session

from service.accounts import accounts, audit, projects
from service.accounts.keys import new_key
from service.accounts.models import ApiKey, User
from service.accounts.oidc import Account, printable
from service.accounts.schemas import NAME
from service.accounts.sign_in import SignIn
from service.accounts.users import HOUSEKEEPING, PROCESS, KeyRefused, store_key
from service.db.engine import now
from service.settings import Settings
from service.vocabulary import ROLE_SCOPES, DisabledFor, Role

log = logging.getLogger(__name__)

SIGN_IN_LASTS_S = 86_400.0
"""Time after which a browser signs in again, so that who leaves a group loses access."""
KEY_NAME = "sign-in by the lab's account"

WAITS = "your account waits for the yes of an admin: ask one for `mpt admin user set {} --active`"
NO_GROUP = "your account is in none of the groups that may use this lab: ask its admin"
BARRED = "an admin has disabled your account in this lab: ask one"
NAMELESS = (
    "the provider gives your account no name (claim preferred_username): ask an admin for a user, "
    "and to link it: `mpt admin user set NAME --subject {}`"
)
NO_NAME = (
    "the provider gives your account the name {!r}, of which no user name can be made: ask an "
    "admin for a user, and to link it: `mpt admin user set NAME --subject {}`"
)
TAKEN = (
    "there is a user {0} already, who does not sign in by your account. If it is you, ask an admin "
    "to link the two: `mpt admin user set {0} --subject {1}`"
)


def sign_in(session: Session, account: Account, settings: Settings) -> SignIn | str:
    """Return a sign-in of the account's user, who is added at the first one, or the reason of a
    refusal whose changes are to be committed. Raises KeyRefused if nothing changed."""
    user = session.scalar(
        select(User).where(User.oidc_issuer == account.issuer, User.oidc_subject == account.subject)
    )
    role = role_of(account.groups, settings)
    if role is None:
        who = printable(f"{account.subject} ({account.preferred_name})")
        groups = [printable(group) for group in sorted(account.groups)[:20]]
        log.warning(
            "account %s is in none of the groups of MPT_OIDC_ROLES: its %s are %s",
            who, settings.oidc_groups_claim, groups,
        )  # fmt: skip
    if user is None:
        if role is None:
            raise KeyRefused(NO_GROUP)
        user = _added(session, account, role, waits=settings.oidc_new_users == "wait")
    elif role is None:
        end_access(session, user)
        return NO_GROUP
    elif user.disabled_for == DisabledFor.GROUPS:
        accounts.change(session, user, None, True, {})
        audit.note(session, PROCESS, "user.access_returned", user.name)
    if user.disabled_at is not None:
        if user.disabled_for == DisabledFor.APPROVAL:
            return WAITS.format(user.name)
        raise KeyRefused(BARRED)
    apply_groups(session, user, account.groups, settings)
    return SignIn.by(session, _new_sign_in_key(session, user, account.authenticated_at).id)


def role_of(groups: Collection[str], settings: Settings) -> Role | None:
    """Return the highest role of some groups, None if they have none. Without a table of roles it
    is that of a member."""
    if not settings.oidc_roles:
        return Role.MEMBER
    roles = {role for group, role in settings.oidc_roles.items() if group in groups}
    return next((role for role in Role if role in roles), None)


def apply_groups(session: Session, user: User, groups: Collection[str], settings: Settings) -> None:
    """Give a user what the account's groups give: the role and the projects, if the settings have
    tables. It is called at each sign-in. Raises KeyRefused."""
    role = role_of(groups, settings) if settings.oidc_roles else None
    if role is not None and role != user.role:
        before = user.role
        try:
            accounts.change(session, user, role, None, {})
        except accounts.LastAdmin:
            raise KeyRefused(
                f"your groups make you a {role}, and you are the last admin: make another user one "
                "first"
            ) from None
        audit.note(session, PROCESS, "user.role_changed", user.name, role=role, before=before)
    _apply_projects(session, user, groups, settings.oidc_projects)


def _apply_projects(
    session: Session, user: User, groups: Collection[str], table: Mapping[str, str]
) -> None:
    """Let a user join the projects of some groups, and leave the others of the table. A project
    that does not exist is left out, with a line of the log."""
    wanted = {project for group, project in table.items() if group in groups}
    present = projects.of_member(session, user.id)
    changed = set(table.values()) & (wanted ^ present)
    for project in projects.lock(session, changed):
        changed.remove(project.name)
        joins = project.name in wanted
        projects.change_members(session, project, [user] * joins, [user] * (not joins))
        done = "project.joined" if joins else "project.left"
        audit.note(session, PROCESS, done, project.name, user=user.name)
    if changed:
        log.warning("MPT_OIDC_PROJECTS names projects that do not exist: %s", sorted(changed))


def end_access(session: Session, user: User) -> None:
    """Disable a user whose account left the groups, with all keys, until it is in one again. The
    last admin keeps the keys and is only refused the sign-in."""
    if user.disabled_at is not None:
        return
    try:
        with session.begin_nested():
            accounts.change(session, user, None, False, {})
    except accounts.LastAdmin:
        session.refresh(user)
        return
    user.disabled_for = DisabledFor.GROUPS
    audit.note(session, PROCESS, "user.access_ended", user.name, reason="groups")


def _added(session: Session, account: Account, role: Role, waits: bool) -> User:
    """Add the user of a new account. Raises KeyRefused."""
    preferred_name = account.preferred_name.partition("@")[0]
    name = preferred_name.lower()
    is_usable = preferred_name.isascii() and re.fullmatch(NAME, name) is not None
    if not is_usable or name in (PROCESS, HOUSEKEEPING):
        preferred, subject = account.preferred_name[:100], shlex.quote(account.subject)
        if not preferred:
            raise KeyRefused(NAMELESS.format(subject))
        raise KeyRefused(NO_NAME.format(preferred, subject))
    user = accounts.add(session, name, role)
    if user is None:
        raise KeyRefused(TAKEN.format(name, shlex.quote(account.subject)))
    user.oidc_issuer, user.oidc_subject = account.issuer, account.subject
    details = {"role": role, "issuer": account.issuer, "subject": account.subject}
    audit.note(session, PROCESS, "user.added", name, **details)
    if waits:
        accounts.change(session, user, None, False, {})
        user.disabled_for = DisabledFor.APPROVAL
        audit.note(session, PROCESS, "user.waits_for_approval", name)
    return user


def _new_sign_in_key(session: Session, user: User, authenticated_at: float) -> ApiKey:
    """Store a key for one browser, and delete those of the user's sign-ins that have ended."""
    over = or_(ApiKey.revoked_at.is_not(None), ApiKey.expires_at <= now())
    by_account = ApiKey.authenticated_at.is_not(None)
    session.execute(delete(ApiKey).where(ApiKey.user_id == user.id, by_account, over))
    scopes = ROLE_SCOPES[Role(user.role)]
    key = store_key(session, user, new_key(), scopes, name=KEY_NAME, lasts_s=SIGN_IN_LASTS_S)
    key.authenticated_at = authenticated_at
    session.flush()
    return key
