"""Routes for projects."""

from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Path
from sqlalchemy.orm import Session

from mptcore.specs import Problem
from service.accounts import accounts, audit, projects
from service.accounts.models import Project, User
from service.accounts.permissions import check_has_key
from service.accounts.schemas import (
    NAME,
    PROJECT_LIMITS,
    NewProject,
    ProjectChanges,
    ProjectList,
    ProjectOut,
)
from service.refusals import ApiError, invalid
from service.web.dependencies import Admin, DatabaseDep, Reader
from service.web.route import JsonBody, StrictRoute

router = APIRouter(prefix="/v1/projects", tags=["users"], route_class=StrictRoute)

ProjectName = Annotated[str, Path(pattern=NAME, description="Name of the project.")]


@router.get("")
def list_projects(database: DatabaseDep, user: Reader) -> ProjectList:
    """List your projects or, for an admin, all, by name."""
    with database.snapshot() as session:
        found = projects.listed(session, None if user.is_admin else user.id)
        names = projects.members(session, [one.id for one in found])
        return ProjectList(items=[_project_out(one, names[one.id]) for one in found])


@router.post("", status_code=HTTPStatus.CREATED)
def add_project(new: JsonBody[NewProject], database: DatabaseDep, user: Admin) -> ProjectOut:
    """Add a project. A browser's sign-in cannot add projects."""
    check_has_key(user)
    wanted = new.model_dump(exclude_unset=True)
    limits = {name: wanted[name] for name in PROJECT_LIMITS if name in wanted}
    with database.transaction() as session:
        joining = _users(session, "/members", new.members)
        project = projects.add(session, new.name)
        if project is None:
            detail = f"there is a project {new.name} already: choose another name"
            raise ApiError(HTTPStatus.CONFLICT, "name_taken", detail)
        projects.change(session, project, None, limits)
        projects.change_members(session, project, joining, ())
        audit.note(session, user, "project.added", new.name, members=new.members, **limits)
        return _project_out(project, projects.members(session, [project.id])[project.id])


@router.patch("/{name}")
def change_project(
    name: ProjectName, changes: JsonBody[ProjectChanges], database: DatabaseDep, user: Admin
) -> ProjectOut:
    """Change a project's members, shares or limits, or close or open it. A closed project accepts
    no experiments; those that it has still run, also those of members who leave. A browser's
    sign-in cannot change projects."""
    check_has_key(user)
    wanted = changes.model_dump(exclude_unset=True)
    limits = {name: wanted[name] for name in PROJECT_LIMITS if name in wanted}
    with database.transaction() as session:
        project = projects.find(session, name)
        if project is None:
            detail = f"there is no project {name}: `mpt admin project list` shows all"
            raise ApiError(HTTPStatus.NOT_FOUND, "not_found", detail)
        joining = _users(session, "/add_members", changes.add_members)
        leaving = _users(session, "/remove_members", changes.remove_members)
        projects.change(session, project, changes.open, limits)
        projects.change_members(session, project, joining, leaving)
        audit.note(session, user, "project.changed", name, **wanted)
        return _project_out(project, projects.members(session, [project.id])[project.id])


def _users(session: Session, pointer: str, names: list[str]) -> list[User]:
    """Return the named users. Raises ApiError."""
    found = {name: accounts.find(session, name) for name in dict.fromkeys(names)}
    if unknown := [name for name, user in found.items() if user is None]:
        detail = f"there is no user {', '.join(unknown)}: `mpt admin user list` shows all"
        raise invalid([Problem(pointer, detail)])
    return [user for user in found.values() if user is not None]


def _project_out(project: Project, members: list[str]) -> ProjectOut:
    return ProjectOut.of(project, open=project.closed_at is None, members=members)
