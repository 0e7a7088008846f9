"""Every setting, read once from the environment (prefix MPT_)."""

import os
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from platformdirs import user_data_path
from pydantic import Field, SecretStr
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)
from sqlalchemy import make_url

from mptcore.specs import Limits
from service.fair_share import FairShare
from service.logs import LogForm

SECRETS = ("database_url", "database_password", "redis_url", "redis_password")
"""Each may stand in a file that the variable with _FILE at its end names."""


class SecretFiles(PydanticBaseSettingsSource):
    """Reads the secrets that stand in files, as containers and systemd hand them over."""

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
    """No secret has a default. Times are in seconds."""

    model_config = SettingsConfigDict(
        env_prefix="MPT_", env_nested_delimiter="__", frozen=True, hide_input_in_errors=True
    )

    store: Path = Field(default_factory=lambda: user_data_path("mptlab"))
    """The directory of everything that is kept: database (embedded), key, uploads, artifacts."""
    database_url: str | None = Field(default=None, repr=False)
    """SQLAlchemy's URL; unset is SQLite in the store."""
    database_password: SecretStr | None = None
    """PostgreSQL's, where the URL has none."""
    data_dir: Path | None = None
    """Where data sets lie: `MNIST/`, `FashionMNIST/`, `text/`, `glue/`. Runs read them there; a
    service that sees them refuses a spec that names what is not there."""
    models_dir: Path | None = None
    """Where checkpoints of language models lie, a folder each; as with the data sets."""
    limits: Limits = Limits()
    share: FairShare = FairShare()
    redis_url: SecretStr | None = None
    """The broker of lab mode."""
    redis_password: SecretStr | None = None
    """The broker's, where the URL has none."""
    api_connections: int = Field(default=12, ge=2)
    """To the database, of one API process. A worker has two, a dispatcher one, a reaper
    three."""
    api_writers: int = Field(default=4, ge=1)
    """So many requests at once may write in one API process: the rest is left to readers."""
    write_wait_s: float = Field(default=10.0, gt=0)
    """A request that waits so long for its turn to write is answered 503."""
    max_upload_bytes: int = 4 * 2**30
    """Of one file."""
    max_uploads: int = Field(default=4, gt=0)
    """At once, of an API process."""
    max_user_uploads: int = Field(default=2, gt=0)
    """At once, of a user, to an API process."""
    upload_stall_s: float = Field(default=60.0, gt=0)
    """An upload of which less than a megabyte comes in so long is ended."""
    reserve_bytes: int = Field(default=2**30, ge=0)
    """Of the store's disk that uploads leave free."""
    max_body_bytes: int = 256 * 1024
    """Of every other request."""
    max_batch_bytes: int = 4 * 2**20
    """Of a request for many experiments: a batch, or a sweep."""
    body_s: float = Field(default=30.0, gt=0)
    """For the whole of it to come."""
    rate_per_user: int = Field(default=2000, ge=1)
    """Requests of a user in ten seconds, over all its keys; more are answered 429."""
    rate_per_address: int = Field(default=500, ge=1)
    """Requests of an address in ten seconds without a key that is known to serve."""
    max_user_streams: int = Field(default=100, ge=1)
    """Event streams and waiting requests of a user at once, in an API process; a stream more is
    answered 429, and a request does not wait."""
    max_wait_s: float = Field(default=60.0, ge=0)
    """So long a request with `Prefer: wait` waits at most."""
    places_for_s: float = Field(default=1.0, ge=0)
    """How old the picture of the queue may be by which answers tell where an experiment stands; up
    to twice as old while the next is made."""
    webhooks_by_http: bool = False
    """Whether webhooks may go unencrypted."""
    webhooks_to_private: bool = False
    """Whether webhooks may go to addresses that are not public: this machine, and your network."""
    trusted_hosts: list[str] = []
    """Names, as a JSON list, that the API answers to beside those of loopback; empty: all."""
    cors_origins: list[str] = []
    """Origins, as a JSON list, whose pages a browser lets ask; empty: none."""

    purge_after_s: float = Field(default=7 * 86_400.0, ge=0)
    """A deleted experiment's records and files go after so long."""
    keep_s: float | None = Field(default=None, gt=0)
    """Experiments that ended longer ago are deleted, unless they are pinned; unset: none are."""
    keep_user_bytes: int | None = Field(default=None, gt=0)
    """Where the files that a user's experiments left are more, the oldest that ended and are not
    pinned are deleted; unset: none are."""

    lease_s: float = Field(default=10.0, gt=0)
    """How long a run is its worker's without a sign of life."""
    heartbeat_s: float = Field(default=1.0, gt=0)
    """How often a worker says that it lives, at the least."""
    dispatch_timeout_s: float = Field(default=30.0, gt=0)
    """How long a dispatched experiment may stay unclaimed."""
    kill_grace_s: float = Field(default=10.0, gt=0)
    """Between SIGTERM and SIGKILL."""
    max_lost: int = Field(default=3, ge=0)
    """Lost leases after which an experiment fails."""
    poll_s: float = Field(default=0.1, gt=0)
    """How often an idle worker or dispatcher looks for work."""
    checkpoint_every_s: float = Field(default=30.0, gt=0)
    """How long a run goes on without a checkpoint, about; longer where saving takes so long that it
    would be more than a tenth of the run."""
    stall_s: float = Field(default=1800.0, gt=0)
    """A run that reports nothing for so long is ended."""
    deaf_s: float = Field(default=10.0, gt=0)
    """A node that is idle while a dispatch for it has waited so long is restarted."""
    run_memory_bytes: int | None = Field(default=None, gt=0)
    """Main memory that a run may use; unset is nine tenths of the worker's machine or container."""

    warm_parent: bool = True
    """Keep a process from which runs are forked: 300 MB for the seconds that torch takes to load.
    """
    hub_cache_bytes: int = Field(default=200 * 2**30, ge=0)
    """Of models and data sets from the hub, where their cache (HF_HOME) lies in the store."""
    log_form: LogForm = LogForm.JSON
    """Of what processes write to stderr; `mpt serve` asks for lines that a person reads."""
    until_stdin_ends: bool = False
    """End when standard input does: the process that holds its other end is gone."""

    @classmethod
    def settings_customise_sources(
        cls, settings_cls: type[BaseSettings], *sources: Any, **named: PydanticBaseSettingsSource
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return named["init_settings"], SecretFiles(settings_cls), named["env_settings"]

    @property
    def worker_silent_s(self) -> float:
        """A worker that missed three heartbeats, and the grace of a run that it ends, is gone."""
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
        """With its password. To be kept out of logs."""
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
        """A folder for each upload that is under way."""
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
        """Of one attempt: what another one writes, cut off or late, cannot take its place."""
        folder = self.all_artifacts(experiment_id)
        return folder / str(attempt) if attempt else folder  # 0: kept before attempts had their own

    @property
    def key_file(self) -> Path:
        return self.store / "api-key"
