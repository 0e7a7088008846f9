"""Settings, read once from the environment (prefix MPT_)."""

import os
import re
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Self
from urllib.parse import quote, urlsplit

from platformdirs import user_data_path
from pydantic import (
    BaseModel,
    Field,
    SecretStr,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)
from sqlalchemy import make_url

from mptcore.specs import Limits
from service.fair_share import FairShare
from service.vocabulary import Role

SECRETS = (
    *("database_url", "database_password", "redis_url", "redis_password"),
    "oidc_client_secret",
)
"""Settings that may be in files, named by the variable with _FILE at its end."""


PREFIX = "MPT_"
LOOPBACK = ("127.0.0.1", "::1", "localhost")
HEARTBEAT_S = 1.0
OTHER_VARIABLES = ("MPT_KERNELS", "MPT_ALLOW_DOWNLOAD", "MPT_URL", "MPT_API_KEY", "MPT_RETRY_S")
"""Variables that runs or the client read."""


class SecretFiles(PydanticBaseSettingsSource):
    """Settings source that reads secrets from files, as containers and systemd provide them."""

    def __call__(self) -> dict[str, Any]:
        named = {name: os.environ.get(f"MPT_{name}_FILE".upper()) for name in SECRETS}
        return {name: self._read(name, Path(file)) for name, file in named.items() if file}

    def _read(self, name: str, file: Path) -> str:
        variable = f"MPT_{name}".upper()
        if os.environ.get(variable):
            raise SettingsError(f"both {variable} and {variable}_FILE are set: unset one")
        try:
            secret = file.read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsError(f"{variable}_FILE cannot be read: {error}") from None
        if not secret:
            raise SettingsError(f"{variable}_FILE names a file that is empty: {file}")
        return secret

    def get_field_value(self, field: Any, field_name: str) -> tuple[Any, str, bool]:
        raise NotImplementedError  # all are given at once


class Settings(BaseSettings):
    """All settings. Secrets have no default. Times are in seconds."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        env_nested_delimiter="__",
        frozen=True,
        hide_input_in_errors=True,
        use_attribute_docstrings=True,
    )

    store: Path = Field(default_factory=lambda: user_data_path("mptlab"))
    """Folder of all stored data: database (embedded), key, uploads, artifacts."""
    database_url: str | None = Field(default=None, repr=False)
    """URL of the database, in SQLAlchemy's form. Unset: SQLite in the store."""
    database_password: SecretStr | None = None
    """Password of PostgreSQL, if the URL has none."""
    data_dir: Path | None = None
    """Folder of data sets: `MNIST/`, `FashionMNIST/`, `text/`, `glue/`. Runs read them there. A
    service that can read it refuses specs that name missing data."""
    models_dir: Path | None = None
    """Folder of checkpoints of language models, a folder for each. A service that can read it
    refuses specs that name missing checkpoints if `HF_HUB_OFFLINE` disables the hub."""
    limits: Limits = Limits()
    """Limits of the size of an experiment."""
    share: FairShare = FairShare()
    """Fair share among users."""
    redis_url: SecretStr | None = None
    """URL of the broker in lab mode."""
    redis_password: SecretStr | None = None
    """Password of the broker, if the URL has none."""
    api_connections: int = Field(default=10, ge=2)
    """Database connections of an API process. It handles four requests fewer at the same time, and
    at most two thirds of them are one user's. A worker has 2 connections, a controller 3."""
    max_upload_bytes: int = 4 * 2**30
    """Maximum size of an uploaded file."""
    reserve_bytes: int = Field(default=2**30, ge=0)
    """Bytes of the store's disk that uploads leave free. With less free, no run starts."""
    rate_per_user: int = Field(default=2000, ge=1)
    """Maximum number of requests of a user to an API process in ten seconds, over all keys; then
    429."""
    webhooks_to_private: bool = False
    """True allows webhooks to addresses that are not public (this machine, your network), and
    without encryption (http)."""
    trusted_hosts: list[str] = []
    """Host names, as a JSON list, that the API answers to besides loopback. Empty: all."""
    cors_origins: list[str] = []
    """Origins, as a JSON list, whose pages may send requests from a browser. Empty: none."""

    oidc_issuer: str | None = None
    """URL of the OpenID Connect provider whose accounts sign browsers in. Unset: no such sign-in.
    Only the API needs these settings."""
    oidc_client_id: str | None = None
    """Id under which the provider knows this service."""
    oidc_client_secret: SecretStr | None = None
    """Secret of this service at the provider."""
    oidc_scopes: str = "openid profile"
    """Scopes that are requested from the provider, separated by spaces."""
    oidc_new_users: Literal["wait", "admit"] = "wait"
    """`admit`: the first sign-in of an account adds a user. `wait`: the user is disabled until an
    admin enables it."""
    oidc_groups_claim: str = "groups"
    """Claim of the ID token or of the userinfo endpoint that lists the groups of an account."""
    oidc_roles: dict[str, Role] = {}
    """Role of the members of each group, as a JSON object. The highest counts, at each sign-in, and
    who is in none of the groups may not sign in. Empty: everyone may sign in, as a member."""
    oidc_projects: dict[str, str] = {}
    """Project of the members of each group, as a JSON object. At each sign-in a user joins the
    projects of the account's groups and leaves the others of this table. Other projects stay as
    they are."""

    purge_after_s: float = Field(default=7 * 86_400.0, ge=0)
    """Time after which records and files of a deleted experiment are removed."""
    keep_s: float | None = Field(default=None, gt=0)
    """Time after its end at which an experiment is deleted, unless it is pinned. Unset: never."""
    keep_user_bytes: int | None = Field(default=None, gt=0)
    """Maximum size of the files of a user's experiments. Above it the oldest ended experiments that
    are not pinned are deleted. Unset: no limit."""

    lease_s: float = Field(default=10.0, gt=0)
    """Time without a heartbeat after which a worker loses its run. A heartbeat comes each second,
    and at least ten times in this time. Equal for all processes."""
    kill_grace_s: float = Field(default=10.0, gt=0)
    """Time between SIGTERM and SIGKILL."""
    max_lost: int = Field(default=3, ge=0)
    """Number of lost attempts that are allowed: with one more the experiment fails. An attempt is
    lost if its lease expired, its runner was killed from outside, or its GPU failed."""
    checkpoint_every_s: float = Field(default=30.0, gt=0)
    """Approximate time between checkpoints. It is longer if saving would take over a tenth of the
    run."""
    stall_s: float = Field(default=1800.0, gt=0)
    """Time without a report after which a run is ended. A run that waits so long for space on a
    full disk is queued again."""
    run_memory_bytes: int | None = Field(default=None, gt=0)
    """Main memory that a run may use, at most that of the worker's machine or container. Unset:
    nine tenths of it."""

    embedded: Literal["cpu", "gpu"] | None = None
    """Device of runs under `mpt serve`, which sets it: all processes are on this machine and end
    with it. `cpu` refuses specs with `device: cuda`. Checkpoints are refused that are in no folder
    of this machine while it does not reach the hub."""
    warm_parent: bool = True
    """True forks runs from a process that has imported torch. It uses 300 MB and saves seconds of
    each run."""
    hub_cache_bytes: int = Field(default=200 * 2**30, ge=0)
    """Maximum size of the hub's cache of models and data sets (HF_HOME) in the store."""

    @classmethod
    def settings_customise_sources(
        cls, settings_cls: type[BaseSettings], *sources: Any, **named: PydanticBaseSettingsSource
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return named["init_settings"], SecretFiles(settings_cls), named["env_settings"]

    @field_validator("oidc_issuer")
    @classmethod
    def _check_issuer(cls, issuer: str | None) -> str | None:
        if issuer is not None and not (
            is_provider_url(issuer, issuer) and re.search(r"[?#\s]", issuer) is None
        ):
            raise ValueError("give a URL with https (or http for this machine), without ? and #")
        return issuer

    @model_validator(mode="after")
    def _check_oidc(self) -> Self:
        needed = (self.oidc_issuer, self.oidc_client_id, self.oidc_client_secret)
        if any(needed) and not all(needed):
            raise ValueError(
                "set all three of MPT_OIDC_ISSUER, MPT_OIDC_CLIENT_ID and "
                "MPT_OIDC_CLIENT_SECRET (or its file), or none"
            )
        return self

    @property
    def heartbeat_s(self) -> float:
        """Time between heartbeats of a worker, and between looks of the controller."""
        return min(HEARTBEAT_S, self.lease_s / 10)

    @property
    def worker_silent_s(self) -> float:
        """Time after which a silent worker is gone: three heartbeats, and the grace period of a
        run."""
        return 3 * self.heartbeat_s + self.kill_grace_s

    @cached_property
    def url(self) -> str:
        if self.database_url is None:
            return f"sqlite:///{self.store / 'mptlab.sqlite3'}"
        parts = make_url(self.database_url)
        if self.database_password is None or parts.password is not None:
            return self.database_url
        with_password = parts.set(password=self.database_password.get_secret_value())
        return with_password.render_as_string(hide_password=False)

    @cached_property
    def broker_url(self) -> str | None:
        """URL of the broker with its password. Keep it out of logs."""
        if self.redis_url is None:
            return None
        url = self.redis_url.get_secret_value()
        parts = urlsplit(url)
        if self.redis_password is None or parts.password is not None:
            return url
        host = parts.netloc.rpartition("@")[2]
        password = quote(self.redis_password.get_secret_value(), safe="")
        return parts._replace(netloc=f"{parts.username or ''}:{password}@{host}").geturl()

    @property
    def all_incoming(self) -> Path:
        """Folder that has a folder for each upload in progress."""
        return self.store / "incoming"

    def datasets(self, dataset_id: str) -> Path:
        return self.store / "datasets" / dataset_id

    @property
    def all_checkpoints(self) -> Path:
        return self.store / "checkpoints"

    def checkpoints(self, experiment_id: str) -> Path:
        return self.all_checkpoints / experiment_id

    def all_artifacts(self, experiment_id: str) -> Path:
        return self.store / "artifacts" / experiment_id

    def artifacts(self, experiment_id: str, attempt: int) -> Path:
        """Return the folder of one attempt. A late or interrupted attempt writes to its own folder,
        so it cannot replace the files of another."""
        folder = self.all_artifacts(experiment_id)
        return folder / str(attempt) if attempt else folder  # 0: from before attempts had folders

    @property
    def key_file(self) -> Path:
        return self.store / "api-key"

    @property
    def session_key_file(self) -> Path:
        return self.store / "session-key"


def from_environment() -> Settings:
    """Read the settings. Ends the process with a line for each variable that is wrong."""
    try:
        return Settings()
    except ValidationError as error:
        lines = [_wrong(problem["loc"], problem["msg"]) for problem in error.errors()]
        raise SystemExit("; ".join(lines)) from None
    except SettingsError as error:
        name = re.fullmatch('error parsing value for field "(.+)" from source .+', str(error))
        why = str(error) if name is None else _wrong([name[1]], f"not JSON: {error.__cause__}")
        raise SystemExit(why) from None


def _wrong(place: Sequence[int | str], why: str) -> str:
    variable = f"{PREFIX}{'__'.join(map(str, place))}"
    return f"{variable.upper()}: {why} (docs/settings.md)" if place else why


def is_provider_url(url: str, issuer: str) -> bool:
    """Return whether an address of a provider is secure: https, or http for a provider on this
    machine."""
    parts, of_issuer = urlsplit(url), urlsplit(issuer)
    is_here = parts.hostname in LOOPBACK and of_issuer.hostname in LOOPBACK
    is_secure = parts.scheme == "https" or (parts.scheme == "http" and is_here)
    return is_secure and bool(parts.hostname)


def unknown_variables(names: Iterable[str]) -> list[str]:
    """Return those of some environment variables that begin as a setting's do, and are none."""
    known = {f"MPT_{name}".upper() for name in Settings.model_fields}
    known |= {f"MPT_{name}_FILE".upper() for name in SECRETS}
    for name, field in Settings.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            known |= {f"MPT_{name}__{part}".upper() for part in field.annotation.model_fields}
    known.update(OTHER_VARIABLES)
    ours = {name for name in names if name.startswith(PREFIX)} - known
    return sorted(name for name in ours if not name.startswith(f"{PREFIX}TEST_"))
