"""Find and change projects and their members. No function commits."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sqlalchemy import select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from mptcore.specs import Problem
from service.accounts.models import OWN, Project, ProjectMember, User
from service.db.engine import now
from service.db.notices import notify
from service.db.visibility import Owned
from service.refusals import ApiError, invalid
from service.vocabulary import Visibility


def add(session: Session, name: str) -> Project | None:
    """Add a project without members. Return None if the name is taken."""
    try:
        with session.begin_nested():  # the unique name decides between two at the same time
            project = Project(name=name)
            session.add(project)
    except IntegrityError:
        return None
    return project


def lock(session: Session, names: Collection[str]) -> Sequence[Project]:
    """Return the named projects that there are, locked in the order of their ids, as submissions
    lock them."""
    query = select(Project).where(Project.name.in_(names)).order_by(Project.id)
    return session.scalars(query.with_for_update()).all()


def find(session: Session, name: str) -> Project | None:
    """Return a project, locked, so that no submission into it goes on meanwhile."""
    return session.scalar(select(Project).where(Project.name == name).with_for_update())


def listed(session: Session, member_id: int | None = None) -> Sequence[Project]:
    """Return all projects, or those of a member, by name."""
    query = select(Project).order_by(Project.name)
    if member_id is not None:
        of_member = select(ProjectMember.project_id).where(
            ProjectMember.user_id == member_id, ProjectMember.left_at.is_(None)
        )
        query = query.where(Project.id.in_(of_member))
    return session.scalars(query).all()


def members(session: Session, project_ids: Collection[int]) -> dict[int, list[str]]:
    """Return the names of the present members of projects, by project."""
    names: dict[int, list[str]] = {id: [] for id in project_ids}
    rows = session.execute(
        select(ProjectMember.project_id, User.name)
        .join(User, User.id == ProjectMember.user_id)
        .where(ProjectMember.project_id.in_(project_ids), ProjectMember.left_at.is_(None))
        .order_by(User.name)
    )
    for project_id, name in rows:
        names[project_id].append(name)
    return names


def change(
    session: Session, project: Project, is_open: bool | None, limits: Mapping[str, object]
) -> None:
    """Change a project's shares and limits, and close or open it."""
    for name, value in limits.items():
        setattr(project, name, value)
    if is_open is not None and is_open != (project.closed_at is None):
        project.closed_at = None if is_open else session.scalar(select(now()))
    session.flush()
    session.refresh(project)
    notify(session)  # queued experiments may start


def change_members(
    session: Session, project: Project, joining: Sequence[User], leaving: Sequence[User]
) -> None:
    """Let users join and leave a project. What a former member has queued in it still runs."""
    known = {
        one.user_id: one
        for one in session.scalars(select(ProjectMember).filter_by(project_id=project.id))
    }
    for user in joining:
        if user.id in known:
            known[user.id].left_at = None
        else:
            session.add(ProjectMember(project_id=project.id, user_id=user.id))
    for user in leaving:
        if user.id in known and known[user.id].left_at is None:
            known[user.id].left_at = session.scalar(select(now()))
    session.flush()


def of_member(session: Session, user_id: int) -> set[str]:
    """Return the names of the projects of a user, also of closed ones."""
    return {project.name for project in listed(session, user_id)}


def usable(session: Session, user_id: int) -> dict[str, int]:
    """Return the ids of the open projects of a user, by name."""
    rows = session.execute(
        select(Project.name, Project.id)
        .join(ProjectMember, ProjectMember.project_id == Project.id)
        .where(
            ProjectMember.user_id == user_id,
            ProjectMember.left_at.is_(None),
            Project.closed_at.is_(None),
        )
        .order_by(Project.name)
    )
    return {row.name: row.id for row in rows}


def not_usable(name: str, usable: Collection[str]) -> Problem:
    """Return that a user may not submit into a project, with the same words whether or not it
    exists."""
    may_use = f": you may use {', '.join(usable)}" if usable else ""
    instead = "leave it out to submit outside of projects"
    detail = f"you are in no open project {name}{may_use}; {instead}"
    return Problem("/project", detail)


def chosen(session: Session, user_id: int, name: str | None, within: str = "") -> int:
    """Return the id of an open project of a user, or OWN without a name. `within` is the place in
    the request. Raises ApiError."""
    if name is None:
        return OWN
    mine = usable(session, user_id)
    if name not in mine:
        raise _refused(not_usable(name, mine), within)
    return mine[name]


IN_NO_PROJECT = Problem(
    "/visibility", "private or lab: project is for what is in a project, and this is in none"
)


def chosen_visibility(wanted: Visibility | None, project_id: int, within: str = "") -> Visibility:
    """Return the visibility of something in a project: without a wish, its members may read it.
    Raises ApiError if it is to be open to a project and is in none."""
    if wanted == Visibility.PROJECT and project_id == OWN:
        raise _refused(IN_NO_PROJECT, within)
    return wanted or (Visibility.PRIVATE if project_id == OWN else Visibility.PROJECT)


def choose_visibility(session: Session, changes: dict[str, Any], row: Owned) -> None:
    """Set the visibility in the changes of a row, if they have one. Who has left a project opens
    nothing to its members. Raises ApiError."""
    if "visibility" not in changes:
        return
    is_member = row.project_id in {project.id for project in listed(session, row.owner_id)}
    wanted = changes["visibility"]
    if wanted == Visibility.PROJECT and row.project_id != OWN and not is_member:
        raise invalid([Problem("/visibility", "private or lab: its owner has left its project")])
    changes["visibility"] = chosen_visibility(wanted, row.project_id if is_member else OWN)


def _refused(problem: Problem, within: str) -> ApiError:
    return invalid([Problem(within + problem.pointer, problem.detail)])
