"""Sweeps and batches by the client: against the service in this process, and one with a worker."""

from pathlib import Path
from typing import Any

import pytest

from mptlab import Client, Refused
from tests.support.ppca_spec import ppca_spec

SPEC = ppca_spec(model__init="random")


def test_a_sweep_runs_to_its_table(environment: dict[str, str]) -> None:
    """Use the real server and its worker."""
    masks = {"schedule": "all", "per_size": 40}
    # No other test has had these seeds computed.
    spec = {**SPEC, "seeds": [14], "evaluate": {"masks": masks}}
    key = Path(environment["MPT_STORE"], "api-key").read_text().strip()
    with Client(environment["MPT_URL"], key) as connected:
        seen: list[dict[str, Any]] = []
        sweep = connected.sweep(spec, {"model.latent_dim": range(1, 4)}, concurrency=1, name="k")
        ended = sweep.wait(120, on_change=seen.append, poll_s=0.1)
        assert (ended["status"], ended["counts"]["succeeded"]) == ("succeeded", 3)
        assert ended["progress"]["done"] == ended["progress"]["total"] == 300
        assert max(one["counts"]["running"] for one in seen) <= 1
        table = sweep.table()
        assert [row["model.latent_dim"] for row in table] == [1, 2, 3]
        assert all(row["mpt"] < 0 < row["mpt std_err"] and row["mpt count"] == 1 for row in table)
        assert list(sweep.frame()["model.latent_dim"]) == [1, 2, 3]
        again = connected.sweep(spec, {"model.latent_dim": range(1, 4)})
        assert again.get()["status"] == "succeeded"  # at once
        assert [row["experiment_id"] for row in again.table()] == [
            row["experiment_id"] for row in table
        ]


def test_a_sweep_is_cancelled_retried_extended_and_deleted(direct: Client) -> None:
    sweep = direct.sweep(SPEC, {"seeds": [[1], [2]]}, idempotency_key="once")
    assert direct.sweep(SPEC, {"seeds": [[1], [2]]}, idempotency_key="once").id == sweep.id
    assert sweep.cancel()["counts"]["cancelled"] == 2
    assert sweep.wait(10, check=False)["status"] == "cancelled"
    assert sweep.retry() == 2
    assert sweep.add({"seeds": ([i] for i in (3, 4, 5))}) == {"first": 2, "count": 3}
    assert [row["seeds"] for row in sweep.table()] == [[1], [2], [3], [4], [5]]
    assert [one["id"] for one in direct.sweeps()] == [sweep.id]
    with pytest.raises(TimeoutError, match="is queued after"):
        sweep.wait(0.2, poll_s=0.1)
    sweep.delete()
    assert list(direct.sweeps()) == []


def test_a_retry_stops_at_the_limit_of_its_owner(direct: Client) -> None:
    sweep = direct.sweep(SPEC, {"seeds": [[1], [2], [3]]})
    sweep.cancel()
    direct.change_user(direct.me()["name"], max_submitted=2)
    assert sweep.retry() == 2
    with pytest.raises(Refused, match="your limit is 2"):
        sweep.retry()


def test_points_may_be_listed_or_drawn(direct: Client) -> None:
    listed = direct.sweep(SPEC, list=[{"seeds": [1]}, {"model.latent_dim": 3}])
    assert listed.get()["points"] == 2
    drawn = direct.sweep(SPEC, random={"n": 7, "fields": {"seeds": [[1], [2]]}})
    assert drawn.get()["points"] == 7
    with pytest.raises(Refused, match="point 1"):
        direct.sweep(SPEC, {"model.latent_dim": [1, 9]})


def test_a_batch_gives_ids_in_order(direct: Client) -> None:
    ids = direct.batch({"spec": ppca_spec(seeds=[i]), "name": f"{i}"} for i in range(3))
    assert [direct.get(one)["name"] for one in ids] == ["0", "1", "2"]
    with pytest.raises(Refused) as refused:
        direct.batch([{"spec": SPEC}, {"spec": {}}])
    assert all(
        one["pointer"].startswith("/experiments/1/") for one in refused.value.document["errors"]
    )


def test_a_retry_of_many_points_takes_several_requests(
    direct: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.submission.requests.MAX_STORED_BYTES", 1)
    sweep = direct.sweep(SPEC, {"seeds": [[1], [2], [3]]})
    sweep.cancel()
    assert sweep.retry() == 3
