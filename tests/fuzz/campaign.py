"""A real API process under a storm of bad requests, and what must then be so.

No answer is a 5xx, but 503 with Retry-After by design, which is counted; the process stays as large
as it was; what the database and the store hold is what was answered 201 or 202, and nothing else.
"""

import http.client
import os
import random
import socket
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil
from sqlalchemy import select

from mptlab import serve
from service.accounts import accounts
from service.accounts.models import ROLE_SCOPES, Role, User
from service.app import create_app
from service.datasets.models import Dataset
from service.db.engine import Database
from service.experiments.models import Experiment
from service.experiments.schemas import Submission
from service.settings import Settings
from service.sweeps import store as sweeps
from service.sweeps.models import Sweep
from service.sweeps.schemas import SweepSubmission
from tests.fuzz.costs import KINDS, MAX_ANSWER_BYTES, TIMES, Cost, cpu_s, waits
from tests.fuzz.hostile import ATTACKS, Connection, SlowLoris
from tests.fuzz.mutations import Generator, Request, routes
from tests.support import stored
from tests.support.ppca_spec import ppca_spec
from tests.support.processes import Lab, wait_until

HEAD_S = 20.0
ROLES = tuple(Role)
"""Each has a user whose key asks."""
UNLIMITED = {"MPT_RATE_PER_USER": "1000000000", "MPT_RATE_PER_ADDRESS": "1000000000",
             "MPT_MAX_UPLOAD_BYTES": "8000000"}  # fmt: skip
WARM = 300
"""Number of requests after which the process has loaded all its modules."""
GROWTH_BYTES = 64 * 2**20
"""More would be a body of 100 MiB that was kept, or 700 bytes of each of 100,000 requests."""
COSTLY_GROWTH_BYTES = 256 * 2**20
"""More would be a large body's objects that stay, several times over."""
ANSWER_S = 30.0


@dataclass
class Outcome:
    """Result of a campaign."""

    requests: int = 0
    statuses: Counter[int | None] = field(default_factory=Counter)
    defects: list[str] = field(default_factory=list)
    growth_bytes: int = 0
    seconds: float = 0.0
    costs: list[Cost] = field(default_factory=list)

    @property
    def summary(self) -> str:
        """Return the result in one line."""
        server = sum(count for status, count in self.statuses.items() if (status or 0) >= 500)
        busy = self.statuses[503]
        return (
            f"{'FAILED' if self.defects else 'ok'}: {self.requests} requests in "
            f"{self.seconds:.0f} s, {server - busy} answers of 5xx ({busy} of 503 with "
            f"Retry-After), memory grew by {self.growth_bytes / 2**20:.0f} MiB, "
            f"{len(self.defects)} defects"
        )


@dataclass
class Target:
    """The API process of a lab, a key for each role, and the ids of objects to request."""

    process: psutil.Process
    port: int
    settings: Settings
    keys: dict[str, str]
    known: dict[str, list[str]]

    @property
    def rss_bytes(self) -> int:
        rss: int = self.process.memory_info().rss
        return rss


@contextmanager
def target(settings: Settings, log: Path) -> Iterator[Target]:
    """The service as a process of its own, on a prepared store."""
    lab = Lab(settings, log)
    keys, known = _people(settings)
    process = lab.start("api", "api", "--port", str(lab.port), **UNLIMITED)
    try:
        address = f"http://127.0.0.1:{lab.port}/healthz"
        serve.wait_until(lambda: _answers(address))
        yield Target(psutil.Process(process.pid), lab.port, settings, keys, known)
    finally:
        process.terminate()
        process.wait(30)


def _answers(address: str) -> bool:
    try:
        return httpx.get(address).is_success
    except httpx.TransportError:
        return False


def _people(settings: Settings) -> tuple[dict[str, str], dict[str, list[str]]]:
    """A user of each role with a key, and a user who is only changed by others."""
    with closing(Database(settings.url)) as database, database.transaction() as session:
        keys = {}
        for role in ROLES:
            user = accounts.add(session, f"a-{role}", role)
            assert user is not None
            keys[role.value] = accounts.add_key(
                session, user, name=None, scopes=ROLE_SCOPES[role], lasts_s=None
            )[1]
        victim = accounts.add(session, "victim", Role.MEMBER)
        assert victim is not None
        key, _ = accounts.add_key(
            session, victim, name=None, scopes=ROLE_SCOPES[Role.MEMBER], lasts_s=None
        )
        user = accounts.find(session, f"a-{Role.MEMBER}")
        assert user is not None
        submission = Submission.model_validate({"spec": ppca_spec()})
        ids = [stored.submit(session, user.id, submission).id for _ in range(3)]
        swept = {"spec": ppca_spec(), "grid": {"model.latent_dim": [1]}}
        sweep = sweeps.add(session, sweeps.new(user.id, SweepSubmission.model_validate(swept)))
        known = {"experiment_id": ids, "sweep_id": [sweep.id], "name": ["victim"],
                 "key_id": [key.id], "dataset_id": ["0" * 32], "series": ["score"]}  # fmt: skip
        return keys, known


def run(aim: Target, count: int, seed: int, most_cpu_s: float | None = None) -> Outcome:
    """Send this number of requests, including hostile connections and costly requests. If
    `most_cpu_s` is given, repeat each kind of costly request and limit its CPU time."""
    outcome, began = Outcome(), time.monotonic()
    before = _stored(aim.settings)
    chance = random.Random(seed)
    document = create_app(aim.settings).openapi()
    generator = Generator(chance, routes(document), aim.keys, aim.known)
    made: set[str] = set()
    asker = Asker(aim.port)
    _load_arrow(aim)  # before a request deletes its experiment
    _ask(asker, generator, min(WARM, count // 4), outcome, made)
    warm_bytes = aim.rss_bytes
    loris, opened_at = SlowLoris(aim.port), time.monotonic()
    for name, attack in ATTACKS.items():
        status = _attacked(aim, attack, chance)
        outcome.requests += 1
        outcome.statuses[status] += 1
        if status is not None and status >= 500:
            outcome.defects.append(f"{name}: answered {status}")
        _watch_memory(aim, warm_bytes, outcome, name)
    _ask(
        asker, generator, count - len(KINDS) * _times(most_cpu_s) - outcome.requests, outcome, made
    )
    _watch_memory(aim, warm_bytes, outcome, "all requests")
    _ask_costly(aim, asker, outcome, most_cpu_s)
    _watch_memory(aim, warm_bytes, outcome, "all costly requests", COSTLY_GROWTH_BYTES)
    if time.monotonic() > opened_at + HEAD_S + 5 and loris.still_open():
        outcome.defects.append(f"{loris.still_open()} slow connections are still open")
    loris.close()
    asker.close()
    _check_stored(aim, before, made, outcome)
    outcome.seconds = time.monotonic() - began
    return outcome


def _load_arrow(aim: Target) -> None:
    """Ask for curves in a format whose library, of 66 MiB, is loaded by the first request."""
    path = f"/v1/experiments/{aim.known['experiment_id'][0]}/curves?format=arrow"
    headers = {"Authorization": f"Bearer {aim.keys[Role.ADMIN]}"}
    url = f"http://127.0.0.1:{aim.port}{path}"
    httpx.get(url, headers=headers, timeout=60).raise_for_status()


def _attacked(aim: Target, attack: Any, chance: random.Random) -> int | None:
    connection = Connection(aim.port, chance.choice(list(aim.keys.values())))
    return connection.send(attack(connection))


def _times(most_cpu_s: float | None) -> int:
    return 1 if most_cpu_s is None else TIMES


def _ask_costly(aim: Target, asker: "Asker", outcome: Outcome, most_cpu_s: float | None) -> None:
    """Each kind of request that is made to cost much."""
    times = _times(most_cpu_s)
    with waits(aim.port) as waited:
        for name, kind in KINDS.items():
            request = kind.request(aim.keys[Role.MEMBER])
            waited()
            before = cpu_s(aim.process)
            answers = [asker.ask(request) for _ in range(times)]
            cost = Cost(
                name,
                {one.status for one in answers},
                max(len(one.body) for one in answers),
                (cpu_s(aim.process) - before) / times,
                waited(),
            )
            outcome.requests += times
            outcome.statuses.update(one.status for one in answers)
            outcome.costs.append(cost)
            if not cost.statuses <= {*kind.refused, *([] if kind.has_key else [None])}:
                outcome.defects.append(f"{name}: answered {cost.statuses}")
            if cost.answer_bytes > MAX_ANSWER_BYTES:
                outcome.defects.append(f"{name}: an answer of {cost.answer_bytes} bytes")
            if most_cpu_s is not None and cost.cpu_s > most_cpu_s:
                outcome.defects.append(f"{name}: costs {cost.cpu_s:.1f} s")


def _watch_memory(
    aim: Target, warm_bytes: int, outcome: Outcome, when: str, most_bytes: int = GROWTH_BYTES
) -> None:
    growth = aim.rss_bytes - warm_bytes
    if most_bytes == GROWTH_BYTES:
        outcome.growth_bytes = max(outcome.growth_bytes, growth)
    if growth > most_bytes:
        outcome.defects.append(f"after {when} the process is {growth / 2**20:.0f} MiB larger")


def _ask(
    asker: "Asker", generator: Generator, count: int, outcome: Outcome, made: set[str]
) -> None:
    for _ in range(count):
        request = generator.request()
        answer = asker.ask(request)
        outcome.requests += 1
        outcome.statuses[answer.status] += 1
        made |= set(_made(request, answer))
        by_design = answer.status == 503 and "retry-after" in answer.headers
        if answer.status is None or (answer.status >= 500 and not by_design):
            outcome.defects.append(f"{answer.status} {answer.body[:200]!r}: {_shown(request)}")


def _shown(request: Request) -> str:
    headers = [pair for pair in request.headers if pair[0] != b"Authorization"]
    return f"{request.method} {request.target[:200]!r} {headers!r:.300} {request.body[:400]!r}"


@dataclass(frozen=True)
class Answer:
    status: int | None
    headers: dict[str, str]
    body: bytes


class Asker:
    """A connection that is reused as long as the service keeps it open."""

    def __init__(self, port: int):
        self.port = port
        self._socket: socket.socket | None = None

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def ask(self, request: Request) -> Answer:
        """The answer; status None where none came. Asked again on a new connection where the kept
        one was closed."""
        fresh = self._socket is None
        answer = self._asked(request)
        return answer if fresh or answer.status is not None else self._asked(request)

    def _asked(self, request: Request) -> Answer:
        if self._socket is None:
            self._socket = socket.create_connection(("127.0.0.1", self.port), timeout=ANSWER_S)
        sent = True
        try:
            self._socket.sendall(request.wire)
        except OSError:
            sent = False  # it was refused while it was sent: the answer may be there
        response = http.client.HTTPResponse(self._socket, method=request.method)
        try:
            response.begin()
            body = response.read()
        except (OSError, http.client.HTTPException):
            self.close()
            return Answer(None, {}, b"")
        headers = {name.lower(): value for name, value in response.getheaders()}
        if response.will_close or not sent or request.chunked:
            self.close()
        return Answer(response.status, headers, body)


def _made(request: Request, answer: Answer) -> Iterator[str]:
    """Ids of the objects that an answer reports as created."""
    if answer.status in (201, 202) and request.method == "POST":
        document = httpx.Response(200, content=answer.body).json()
        yield from (one["id"] for one in document.get("items", ()))
        yield document.get("id") or document.get("name", "")


def _stored(settings: Settings) -> set[str]:
    """The experiments, sweeps, data sets and users there are; those of a sweep are its own."""
    with closing(Database(settings.url)) as database, database.snapshot() as session:
        experiments = select(Experiment.id).where(Experiment.sweep_id.is_(None))
        queries = (experiments, select(Sweep.id), select(Dataset.id), select(User.name))
        return {one for query in queries for one in session.scalars(query)}


def _check_stored(aim: Target, before: set[str], made: set[str], outcome: Outcome) -> None:
    incoming = aim.settings.all_incoming
    wait_until(lambda: not incoming.exists() or not os.listdir(incoming), 10)
    found = _stored(aim.settings)
    for one in sorted(found - before - made):
        outcome.defects.append(f"{one} is stored, and no answer said so")
    folders = set(os.listdir(aim.settings.store / "datasets")) if (
        aim.settings.store / "datasets").exists() else set()  # fmt: skip
    for one in sorted(folders - found):
        outcome.defects.append(f"the store holds a data set {one} that no one has")
