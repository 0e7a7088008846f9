"""Words that leave the service: those of its answers, its requests, its keys and its events."""

from enum import StrEnum


class Status(StrEnum):
    """Status of an experiment."""

    QUEUED = "queued"
    RUNNING = "running"
    PAUSED = "paused"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


class Ending(StrEnum):
    """Final status of an experiment."""

    SUCCEEDED = Status.SUCCEEDED
    FAILED = Status.FAILED
    CANCELLED = Status.CANCELLED


TERMINAL = (Status.SUCCEEDED, Status.FAILED, Status.CANCELLED)
UNFINISHED = (Status.QUEUED, Status.RUNNING, Status.PAUSED)
WAITING = (Status.QUEUED, Status.PAUSED)


class DesiredState(StrEnum):
    """State that the owner of a running experiment requests."""

    RUN = "run"
    PAUSE = "pause"
    CANCEL = "cancel"


class Visibility(StrEnum):
    """Users that may read a row and start from it: its owner, the members of its project, or
    everyone in the lab."""

    PRIVATE = "private"
    PROJECT = "project"
    LAB = "lab"


class Whose(StrEnum):
    """Scope of a list: the caller's own, shared with the caller's projects, shared with the lab,
    or, for admins, all."""

    MINE = "mine"
    PROJECT = "project"
    LAB = "lab"
    ALL = "all"


class Role(StrEnum):
    """Role of a user: an admin may do everything, a viewer may only read."""

    ADMIN = "admin"
    MEMBER = "member"
    VIEWER = "viewer"


class DisabledFor(StrEnum):
    """Reason for which the service has disabled a user."""

    APPROVAL = "approval"
    """The first sign-in by the lab's account waits for an admin's yes."""
    GROUPS = "groups"
    """The lab's account left the groups that may sign in."""


class Scope(StrEnum):
    """Permission of a key, within its user's role."""

    READ = "read"
    SUBMIT = "submit"
    """Submit, retry, validate, upload, and change names, tags, visibility and the like."""
    CANCEL = "cancel"
    """Cancel, pause, resume, delete; revoke your own keys."""
    ADMIN = "admin"
    """Users, everyone's keys, the audit log; and all of the above on everyone's objects."""
    METRICS = "metrics"


ROLE_SCOPES: dict[Role, tuple[Scope, ...]] = {
    Role.ADMIN: tuple(Scope),
    Role.MEMBER: (Scope.READ, Scope.SUBMIT, Scope.CANCEL, Scope.METRICS),
    Role.VIEWER: (Scope.READ, Scope.METRICS),
}


class Action(StrEnum):
    """Change of an experiment or a sweep."""

    PAUSE = "pause"
    RESUME = "resume"
    CANCEL = "cancel"
    RETRY = "retry"
    CHANGE = "change"
    DELETE = "delete"


DONE = {
    Action.PAUSE: "paused",
    Action.RESUME: "resumed",
    Action.CANCEL: "cancelled",
    Action.RETRY: "retried",
    Action.CHANGE: "changed",
    Action.DELETE: "deleted",
}
"""The actions in the past tense, as in messages and in the audit log."""

SCOPES = {
    Action.PAUSE: Scope.CANCEL,
    Action.RESUME: Scope.CANCEL,
    Action.CANCEL: Scope.CANCEL,
    Action.RETRY: Scope.SUBMIT,
    Action.CHANGE: Scope.SUBMIT,
    Action.DELETE: Scope.CANCEL,
}
"""Scope that each action needs."""


def allowed(status: Status, desired_state: DesiredState) -> tuple[Action, ...]:
    """Return the actions, other than a change of its texts, that the status of an experiment allows
    or, while it is running, the latest request of its owner."""
    match status:
        case Status.QUEUED:
            return Action.PAUSE, Action.CANCEL, Action.DELETE
        case Status.PAUSED:
            return Action.RESUME, Action.CANCEL, Action.DELETE
        case Status.SUCCEEDED:
            return (Action.DELETE,)
        case Status.FAILED | Status.CANCELLED:
            return Action.RETRY, Action.DELETE
    match desired_state:
        case DesiredState.RUN:
            return Action.PAUSE, Action.CANCEL
        case DesiredState.PAUSE:
            return Action.RESUME, Action.CANCEL
    return ()
