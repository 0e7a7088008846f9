"""Bodies and answers about users, keys and the audit log."""

from typing import Annotated, Any

from pydantic import Field

from service.schemas import Line, Moment, Page, RequestModel, ResponseModel
from service.vocabulary import DisabledFor, Role, Scope

NAME = r"^[a-z0-9][a-z0-9._-]{0,63}$"


AnyScope = Annotated[Scope, Field(strict=False)]


STANDING = (
    *("shares", "max_running", "max_submitted", "max_gpu_hours_a_day", "max_bytes"),
    "may_jump",
)
"""Fields of a user that affect the queue and the store."""


class NewUser(RequestModel):
    name: Annotated[str, Field(pattern=NAME)]
    """Lower-case letters, digits, dots, underscores and dashes. The name never changes."""
    role: Role = Field(default=Role.MEMBER, strict=False)
    """Role of the user: `admin`, `member` or `viewer`."""


class UserChanges(RequestModel):
    """Changes to a user. Omitted fields stay as they are."""

    role: Role | None = Field(default=None, strict=False)
    """Role of the user: `admin`, `member` or `viewer`."""
    active: bool | None = None
    """False disables the user: keys are refused, and queued experiments do not start until the user
    is active again. Running experiments continue."""
    shares: Annotated[int, Field(ge=1, le=10_000)] = 1
    """Weight in fair sharing: a user with 2 gets twice the slots of a user with 1."""
    max_running: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = None
    """Maximum number of running experiments. null: the server's limit; 0: none start."""
    max_submitted: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = None
    """Maximum number of experiments that have not ended. null: the server's limit; 0: none."""
    max_gpu_hours_a_day: Annotated[float, Field(ge=0, le=1e6)] | None = None
    """Maximum hours of GPU slots in 24 hours. null: the server's limit; 0: none."""
    max_bytes: Annotated[int, Field(ge=0, le=2**62)] | None = None
    """Maximum number of stored bytes. null: the server's limit; 0: none."""
    may_jump: bool = False
    """True if the user may submit with priorities above 100, which run before everyone else's."""
    oidc_subject: Annotated[str, Field(min_length=1, max_length=255)] | None = None
    """`sub` of the account that signs the user in at the lab's provider. null: none."""


PROJECT_LIMITS = ("shares", "max_running", "max_submitted", "max_gpu_hours_a_day", "max_bytes")
"""Fields of a project that affect the queue."""


class ProjectLimits(RequestModel):
    """Shares and limits of a project. They count the experiments of all its members in it, besides
    the limits of each member."""

    shares: Annotated[int, Field(ge=1, le=10_000)] = 1
    """Weight in fair sharing of all its members together, against users' own experiments and other
    projects."""
    max_running: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = None
    """Maximum number of running experiments. null: no limit; 0: none start."""
    max_submitted: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = None
    """Maximum number of experiments that have not ended. null: no limit; 0: none."""
    max_gpu_hours_a_day: Annotated[float, Field(ge=0, le=1e6)] | None = None
    """Maximum hours of GPU slots in 24 hours. null: no limit; 0: none."""
    max_bytes: Annotated[int, Field(ge=0, le=2**62)] | None = None
    """Maximum number of stored bytes of its experiments, sweeps and data sets. null: no limit."""


Members = Annotated[list[Annotated[str, Field(pattern=NAME)]], Field(max_length=1000)]


class NewProject(ProjectLimits):
    name: Annotated[str, Field(pattern=NAME)]
    """Lower-case letters, digits, dots, underscores and dashes. The name never changes."""
    members: Members = Field([])
    """Names of its members."""


class ProjectChanges(ProjectLimits):
    """Changes to a project. Omitted fields stay as they are."""

    add_members: Members = Field([])
    """Names of users who join it."""
    remove_members: Members = Field([])
    """Names of users who leave it. What they have queued in it still runs."""
    open: bool | None = None
    """False closes the project: it accepts no experiments, and those that it has still run."""


class ProjectOut(ResponseModel):
    """A project, its members and its limits."""

    name: str
    """Name of the project."""
    open: bool
    """False if it is closed: it accepts no experiments."""
    members: list[str]
    """Names of its members."""
    created_at: Moment
    """Time of creation."""
    shares: int
    """Weight in fair sharing of all its members together."""
    max_running: int | None
    """Maximum number of running experiments. null: no limit."""
    max_submitted: int | None
    """Maximum number of experiments that have not ended. null: no limit."""
    max_gpu_hours_a_day: float | None
    """Maximum hours of GPU slots in 24 hours. null: no limit."""
    max_bytes: int | None
    """Maximum number of stored bytes. null: no limit."""


class ProjectList(ResponseModel):
    items: list[ProjectOut]
    """Projects, by name."""


class NewKey(RequestModel):
    name: Line | None = None
    """Purpose of the key."""
    scopes: Annotated[list[AnyScope], Field(min_length=1, max_length=20)] | None = None
    """Scopes of the key, at most those of the user's role. Default: all scopes of the role."""
    lasts_days: Annotated[float, Field(gt=0, le=36_500)] | None = None
    """Days until the key expires. null: never."""


class NewOwnKey(RequestModel):
    """A key that a user makes in the browser."""

    name: Line
    """Purpose of the key."""
    lasts_days: Annotated[float, Field(gt=0, le=90)]
    """Days until the key expires."""
    scopes: Annotated[list[AnyScope], Field(min_length=1, max_length=20)] | None = None
    """Scopes of the key, at most those of your role. Default: all scopes of the role."""


class UserOut(ResponseModel):
    """A user and the user's limits."""

    name: str
    """Name of the user."""
    role: Role
    """`admin`, `member` or `viewer`."""
    active: bool
    """False if the user is disabled: keys are refused, and queued experiments do not start."""
    disabled_for: DisabledFor | None
    """`approval`: a first sign-in waits for an admin's yes. `groups`: the account left the groups
    that may sign in. null: the user is active, or an admin has disabled it."""
    oidc_subject: str | None
    """`sub` of the account that signs the user in at the lab's provider. null: none."""
    created_at: Moment
    """Time of creation."""
    shares: int
    """Weight in fair sharing."""
    max_running: int | None
    """Maximum number of running experiments. null: the server's limit."""
    max_submitted: int | None
    """Maximum number of experiments that have not ended. null: the server's limit."""
    max_gpu_hours_a_day: float | None
    """Maximum hours of GPU slots in 24 hours. null: the server's limit."""
    max_bytes: int | None
    """Maximum number of stored bytes. null: the server's limit."""
    may_jump: bool
    """True if priorities above 100 are allowed."""


class UserList(ResponseModel):
    items: list[UserOut]
    """Users, by name."""


class KeyOut(ResponseModel):
    """An API key. Its secret is not stored."""

    id: str
    """Id of the key. It is not secret."""
    name: str | None
    """Purpose of the key."""
    scopes: list[Scope]
    """Permissions of the key."""
    created_at: Moment
    """Time of creation."""
    expires_at: Moment | None
    """Expiry. null: never."""
    revoked_at: Moment | None
    """Time at which it was revoked. null: it is valid."""
    last_used_at: Moment | None
    """Latest use, precise to a minute. null: never used."""


class KeyList(ResponseModel):
    items: list[KeyOut]
    """Keys, revoked keys included."""


class MadeKey(KeyOut):
    key: str
    """Text of the key. Only this answer has it."""


class Me(ResponseModel):
    """The caller, and the permissions of the key."""

    name: str
    """Name of the user."""
    role: Role
    """`admin`, `member` or `viewer`."""
    key_id: str
    """Id of the key."""
    scopes: list[Scope]
    """Permissions of the key."""


class AuditOut(ResponseModel):
    """An entry of the audit log."""

    id: int
    """Number of the entry."""
    at: Moment
    """Time of the action."""
    actor: str
    """Name of the user or process that acted."""
    key_id: str | None
    """Id of the key. null: a process of the service acted."""
    action: str
    """Action, as object.verb."""
    object_id: str
    """Id of the object."""
    details: dict[str, Any]
    """Further details, by name."""


class AuditPage(Page):
    """A page of the audit log."""

    items: list[AuditOut]
    """Entries, newest first."""
