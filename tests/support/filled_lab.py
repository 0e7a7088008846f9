"""A lab with experiments in every state, for pages to show. No worker: runs are made up."""

import math
import re
from typing import Any

from mptcore.presets import PRESETS
from mptlab import Client
from service.accounts import accounts
from service.db.engine import Database
from service.experiments.models import Queue
from service.queue import lease, workers
from service.queue.lease import Claim, FailureCause
from service.queue.worker_samples import last_minute
from service.queue.workers import Vitals
from service.records.recording import Batch, record
from service.settings import Settings
from service.vocabulary import ROLE_SCOPES, Role, Status
from service.workers.models import WorkerSample
from tests.support.attempts import claim_next, submitted
from tests.support.ppca_spec import ppca_spec
from tests.support.text_tables import stored_table

GIB = 2**30
H100 = Vitals("node2", Queue.GPU, 50 * GIB, "NVIDIA H100", "570", 80 * GIB, 21 * GIB)
LEASE_S = 600.0
MARKUP = "<img src=x onerror=alert(1)><b>bold</b>"
LONG = "a name that goes on and on, as names do that say all that differs: " + "K=5, " * 20
ENVIRONMENT = {
    "core": "3f9a61c07e52d84b" * 4,
    "packages": {"python": "3.11.7", "torch": "2.13.0+cpu", "numpy": "2.4.2"},
    "platform": "Linux-6.1.0-x86_64-with-glibc2.36",
    "cpu": "AMD EPYC 7B13",
    "cpu_capability": "AVX2",
    "threads": 1,
    "gpu": None,
    "gpu_driver": None,
    "cuda": None,
    "precision": "float64",
    "seeds": [4, 44],
    "inputs": {"MNIST/raw/train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738" * 2},
}


def key_of(database: Database, name: str, role: Role) -> str:
    """Return a key of the user of that name, who is created if missing."""
    with database.transaction() as session:
        user = accounts.find(session, name) or accounts.add(session, name, role)
        assert user is not None
        return accounts.add_key(session, user, name=None, scopes=ROLE_SCOPES[role], lasts_s=None)[1]


def points(
    database: Database, claim: Claim, xs: range, *, seeds: tuple[int, ...] = (4, 44), first: int = 1
) -> int:
    """Record a score at each x for each seed; the value at 7 is missing. Gives the next `seq`."""
    seq = first
    batch = Batch()
    for x in xs:
        for seed in seeds:
            value = None if x == 7 else -0.35 - 0.9 / (x + 1) - 0.02 * math.sin(x + seed)
            batch.add({"seq": seq, "record": "point", "series": "score", "labels": {"seed": seed},
                       "x": x, "value": value, "std_err": 0.02, "n": 100,
                       **({} if value else {"reason": "non-finite"})})  # fmt: skip
            seq += 1
    done = {"done": xs.stop - 1, "total": 64, "unit": "masks"}
    batch.add({"seq": None, "record": "progress", **done})
    with database.transaction() as session:
        record(session, claim, batch, LEASE_S)
    return seq + 1


def metrics(database: Database, claim: Claim, first: int, lml: float) -> None:
    batch = Batch()
    for offset, (name, seed, value) in enumerate(
        [("lml", 4, lml), ("lml", 44, lml), ("mpt", 4, lml + 0.07), ("mpt", 44, lml - 0.11)]
    ):
        batch.add({"seq": first + offset, "record": "metric", "name": name, "value": value,
                   "labels": {"seed": seed}, "std_err": 0.03 if name == "mpt" else None,
                   "reason": "exact" if name == "lml" else None})  # fmt: skip
    with database.transaction() as session:
        record(session, claim, batch, LEASE_S)


def end(
    database: Database, claim: Claim, status: Status, failure: FailureCause | None = None
) -> None:
    with database.transaction() as session:
        lease.finish(session, claim, status, failure)


def succeeded(database: Database, name: str, latent_dim: int = 2, **beside: Any) -> str:
    """The id of an experiment with curves and metrics."""
    spec = ppca_spec(model__latent_dim=latent_dim, data__latent_dim=latent_dim)
    submitted(database, spec, name=name, priority=100, **beside)
    claim = claim_next(database, LEASE_S)
    began = Batch()
    began.add({"seq": 1, "record": "environment", **ENVIRONMENT})
    with database.transaction() as session:
        record(session, claim, began, LEASE_S)
    after = points(database, claim, range(1, 65), first=2)
    metrics(database, claim, after, -60.34 - latent_dim)
    end(database, claim, Status.SUCCEEDED)
    return claim.experiment_id


def running(database: Database, name: str) -> tuple[Claim, int]:
    """A run that is under way, and the `seq` of its next record."""
    submitted(database, name=name, priority=100)
    claim = claim_next(database, LEASE_S)
    return claim, points(database, claim, range(1, 25))


def swept(database: Database, api: Client, name: str) -> str:
    """Id of a sweep with three points, two of them ended."""
    grid = {"data.n": [50, 100, 200]}
    made = api.sweep(ppca_spec(), grid, name=name, tags=["by n"])
    for place in range(2):
        claim = claim_next(database, LEASE_S)
        metrics(database, claim, 1, -61.0 + place / 3)
        end(database, claim, Status.SUCCEEDED)
    return made.id


def swept_widely(database: Database, api: Client, name: str) -> str:
    """The id of a sweep over three fields, all of whose points have ended."""
    grid: dict[str, list[Any]] = {
        "model.latent_dim": [1, 2, 4],
        "model.noise_precision": [0.05, 5.0],
        "evaluate.masks.design": ["independent", "balanced"],
    }
    made = api.sweep(ppca_spec(model__init="random"), grid, name=name)
    for place in range(12):
        claim = claim_next(database, LEASE_S)
        metrics(database, claim, 1, -66.0 + 3 * math.sin(place))
        end(database, claim, Status.SUCCEEDED)
    return made.id


def of_the_paper(database: Database) -> None:
    """A run of Fig. 1, left, with the published results except for one seed."""
    preset = PRESETS["fig1-left"]
    tags = ["preset:fig1-left", "part:1"]
    spec = preset.specs[0].model_dump(mode="json")
    submitted(database, spec, name=preset.title, tags=tags, priority=100)
    claim = claim_next(database, LEASE_S)
    batch, seq = Batch(), 1
    for seed, lml in zip(spec["seeds"], preset.published["lml"], strict=True):
        for p in range(1, 201):
            point = {"series": "convergence", "labels": {"seed": seed}, "x": p, "n": p}
            value = 0.4 * math.sin(p * seed) / p
            batch.add({"seq": seq, "record": "point", **point, "value": value,
                       "std_err": 0.2 / math.sqrt(p)})  # fmt: skip
            seq += 1
        wrong = 0.001 if seed == spec["seeds"][-1] else 0.0
        batch.add({"seq": seq, "record": "metric", "name": "lml", "labels": {"seed": seed},
                   "value": lml + wrong, "std_err": None, "reason": "exact"})  # fmt: skip
        seq += 1
    with database.transaction() as session:
        record(session, claim, batch, LEASE_S)
    end(database, claim, Status.SUCCEEDED)


def samples(database: Database) -> None:
    """Samples of two workers over two and a half hours."""
    with database.transaction() as session:
        last = last_minute(session)
        for age in range(0, 150, 5):
            for worker_id, free, total in (("node1:cpu0", 12, None), ("node2:gpu0", 60, 80 * GIB)):
                busy = (age // 20 + len(worker_id)) % 3 > 0
                session.add(WorkerSample(minute=last - age, worker_id=worker_id, busy=busy,
                    memory_free=(free - 5 * busy) * GIB, memory_total=total))  # fmt: skip


PAIRS = ["the old cat sat on a red mat", "the old cat sit on a red mat"]


def text_row(row: int, text: str, group: str | None) -> dict[str, Any]:
    """A row of a table of texts whose tokens are its words, each one less likely than the last."""
    places = [(one.start(), one.end()) for one in re.finditer(r"\S+", text)]
    by_token: list[Any] = [{"text": text[start:end], "start": start, "end": end, "pll": -0.3 * i,
                 "pll_word_l2r": -0.4 * i} for i, (start, end) in enumerate(places)]  # fmt: skip
    pll = sum(one["pll"] for one in by_token) - row / 3
    return {"row": row, "text": text, "group": group, "tokens": len(places), "words": len(places),
            "characters": len(text), "pll": pll, "pll_word_l2r": pll - 1, "cumulative": pll + 0.123,
            "cumulative_std_err": 0.04, "cumulative_masks": 800, "by_token": by_token,
            "difference": 0.0 if row % 2 == 0 else -1 / 3, "difference_std_err": 0.0,
            "rank": 1 + row % 2, "decided": True, "reason": None}  # fmt: skip


def text_rows() -> list[dict[str, Any]]:
    """Rows in 15 groups of two, then three without a group: one of markup, a long one, and one
    without scores."""
    rows = [text_row(i, f"{PAIRS[i % 2]} of house {i // 2}", f"pair {i // 2}") for i in range(30)]
    rows += [text_row(30 + i, text, None) for i, text in enumerate([MARKUP, LONG, "[MASK]"])]
    none = ("difference", "difference_std_err", "rank", "decided")
    rows[30:] = [row | dict.fromkeys(none) for row in rows[30:]]
    scores = ("tokens", "words", "pll", "pll_word_l2r", "cumulative", "cumulative_std_err",
              "cumulative_masks", "by_token")  # fmt: skip
    return [*rows[:-1], rows[-1] | dict.fromkeys(scores) | {"reason": "no token can be masked"}]


def of_texts(database: Database, settings: Settings, name: str) -> str:
    """Id of a finished run with a table of scores of texts."""
    texts = {"scores": ["pll", "pll_word_l2r", "cumulative"], "target_std_err": 0.1,
             "per_token": True, "group_column": "pair"}  # fmt: skip
    return of_table(database, settings, name, texts, text_rows())


def of_table(
    database: Database, settings: Settings, name: str, texts: Any, rows: list[dict[str, Any]]
) -> str:
    """Id of a finished run with a table of these rows."""
    spec = {"model": {"family": "masked_lm", "checkpoint": "tiny"},
            "data": {"source": "text", "file": "pairs.jsonl"},
            "evaluate": {"texts": texts}}  # fmt: skip
    submitted(database, spec, name=name, priority=100)
    claim = claim_next(database, LEASE_S)
    folder = settings.artifacts(claim.experiment_id, 1)
    with database.transaction() as session:
        session.add(stored_table(folder, rows, claim.experiment_id))
    end(database, claim, Status.SUCCEEDED)
    return claim.experiment_id


WILD_TYPE = "MKTAY"


def mutation_rows() -> list[dict[str, Any]]:
    """Rows of all changes to three letters, one of them without a score, and of two changes."""
    names = [f"{old}{i}{new}" for i, old in enumerate(WILD_TYPE, 1) for new in "AKW" if new != old]
    counts = {"tokens": 1, "words": 1, "characters": 3, "reason": None}
    rows = [{"row": i, "text": name, **counts, "masked_marginal": 0.5 - i} for i, name in
            enumerate([*names, "M1A:K2W"])]  # fmt: skip
    rows[3] |= {"masked_marginal": None, "reason": "the letter is not a token of its own"}
    return rows


def of_mutations(database: Database, settings: Settings) -> str:
    """Id of a finished run with a table of scores of mutations."""
    texts = {"scores": ["masked_marginal"], "wild_type": WILD_TYPE}
    return of_table(database, settings, "mutations", texts, mutation_rows())


def fill(database: Database, api: Client, settings: Settings) -> dict[str, str]:
    """Ids of an example of each state."""
    with database.transaction() as session:
        workers.beat(session, "node1:cpu0", Vitals("node1", Queue.CPU, 12 * GIB))
    found = {
        f"succeeded {k}": succeeded(database, f"digits K={k}", k, tags=["table1", f"K={k}"])
        for k in (1, 2, 3)
    }
    found["markup"] = succeeded(database, MARKUP, tags=["<i>tag</i>"])
    found["long"] = succeeded(database, LONG)
    found["texts"] = of_texts(database, settings, "pairs of sentences")
    found["mutations"] = of_mutations(database, settings)
    submitted(database, name="too large for this node", priority=100)
    claim = claim_next(database, LEASE_S)
    cause = FailureCause("oom", "the run took 17 GB of main memory, and may take 16 GB")
    end(database, claim, Status.FAILED, cause)
    found["failed"] = claim.experiment_id
    found["running"] = running(database, "the run that one watches")[0].experiment_id
    found["wide sweep"] = swept_widely(database, api, "latent dimensions, noise and design")
    of_the_paper(database)
    samples(database)
    found["sweep"] = swept(database, api, "noise by hand")
    found["queued"] = submitted(database, ppca_spec(compute__device="cuda"), name="waits for a GPU")
    with database.transaction() as session:  # now, or it would have taken what any device may run
        workers.beat(session, "node2:gpu0", H100)
    return found
