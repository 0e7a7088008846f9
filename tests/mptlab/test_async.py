"""The client for asyncio, by a real service; and that the other one is made of it."""

import asyncio
import hashlib
import inspect
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from mptlab import AsyncClient, Client, NoAnswer, NotSucceeded, Refused, serve
from mptlab._async.__main__ import HERE, MODULES, made
from tests.support.ppca_spec import ppca_spec

WAITING = ppca_spec(compute__device="cuda")


@pytest.fixture
def connected(environment: dict[str, str]) -> AsyncClient:
    key = Path(environment["MPT_STORE"], "api-key").read_text().strip()
    return AsyncClient(environment["MPT_URL"], key)


async def drained(events: AsyncIterator[dict[str, Any]]) -> None:
    async for _ in events:
        pass


@pytest.mark.parametrize("module", MODULES)
def test_the_client_without_asyncio_is_made_of_this_one(module: str) -> None:
    assert (HERE.parent / f"{module}.py").read_text() == made(module), "run `make client`"


def test_both_have_the_same_methods_with_their_words() -> None:
    for name, method in inspect.getmembers(Client, inspect.isfunction):
        other = getattr(AsyncClient, name.replace("__e", "__ae"))
        assert list(inspect.signature(other).parameters) == [*inspect.signature(method).parameters]
        assert inspect.getdoc(other) == inspect.getdoc(method)


def test_a_run_its_curves_and_its_events(connected: AsyncClient, tmp_path: Path) -> None:
    async def main() -> None:
        async with connected as client:
            run = await client.experiments.create(ppca_spec(), cache=False)
            statuses = [event["data"]["status"] async for event in run.events(kind=["status"])]
            assert (statuses[0], statuses[-1]) == ("queued", "succeeded")
            await run.wait(progress=False)
            assert (await run.spec)["seeds"] == [4]
            (listed,) = await client.experiments.list(1)
            assert await listed.metrics == await run.metrics
            curves = await run.curves("score")
            assert len(curves.to_pandas()) == 6
            assert (await run.plot()).axes
            assert [one["message"].split()[0] for one in await run.logs()] == ["torch"]
            bundle = await run.bundle(tmp_path / "bundle.zip")
            assert bundle.read_bytes().startswith(b"PK")
            assert "succeeded" in run._repr_html_()

    asyncio.run(main())


def test_a_sweep(connected: AsyncClient) -> None:
    async def main() -> None:
        async with connected as client:
            spec = ppca_spec(model__init="random")
            sweep = await client.sweep(spec, {"model.latent_dim": range(1, 3)})
            assert (await sweep.wait(progress=False))["status"] == "succeeded"
            frame = await sweep.frame()
            assert list(frame["model.latent_dim"]) == [1, 2]
            assert not hasattr(sweep, "_repr_html_")  # which could not await its table
            assert sweep.id in [one["id"] async for one in client.sweeps(limit=1)]

    asyncio.run(main())


def test_many_at_once_by_one_client(connected: AsyncClient) -> None:
    async def main() -> None:
        async with connected as client:
            runs = await asyncio.gather(
                *(client.experiments.create(WAITING, name=f"{i}") for i in range(30))
            )
            assert len({run.id for run in runs}) == 30
            waits = asyncio.gather(*(run.wait(progress=False, check=False) for run in runs))
            await asyncio.gather(*(run.cancel() for run in runs))
            assert {run.status for run in await waits} == {"cancelled"}

    asyncio.run(main())


def test_many_waits_together_look_no_more_often_than_ten(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []
    pauses: list[float] = []
    sleep = asyncio.sleep

    async def answer(_: httpx.Request) -> httpx.Response:
        await sleep(0)  # the others' turn
        looks.append(1)
        return httpx.Response(200, json={"status": "", "terminal": len(looks) > 40})

    async def pause(seconds: float) -> None:
        pauses.append(seconds)

    async def main() -> None:
        async with AsyncClient("http://lab:1", "key") as client:
            service = httpx.MockTransport(answer)
            client._http = httpx.AsyncClient(transport=service, base_url=client.url)
            await asyncio.gather(*(client.wait(f"{i}", poll_s=0.5) for i in range(40)))
            looks[:] = []
            await asyncio.gather(*(client.wait(f"{i}", poll_s=0.5) for i in range(10)))

    monkeypatch.setattr(asyncio, "sleep", pause)
    asyncio.run(main())
    assert pauses[:40] == [2.0] * 40
    assert set(pauses[40:]) == {0.5}


def test_what_is_cancelled_asks_no_more(connected: AsyncClient) -> None:
    """And leaves the run as it is, and the client as useful as before."""

    async def main() -> None:
        async with connected as client:
            run = await client.experiments.create(WAITING)
            waiting = asyncio.create_task(run.wait(progress=False))
            following = asyncio.create_task(drained(run.events(after="now")))
            await asyncio.sleep(0.3)
            waiting.cancel()
            following.cancel()
            ended = await asyncio.gather(waiting, following, return_exceptions=True)
            assert [type(one) for one in ended] == [asyncio.CancelledError] * 2
            assert (await run.refresh()).status == "queued"
            await run.cancel()
            with pytest.raises(NotSucceeded, match="cancelled"):
                await run.wait(progress=False)

    asyncio.run(main())


def test_an_upload_comes_whole(connected: AsyncClient, tmp_path: Path) -> None:
    file = tmp_path / "mine.npy"
    np.save(file, np.random.default_rng(4).normal(size=(50_000, 4)))

    async def main() -> None:
        async with connected as client:
            upload = await client.upload(file)
            assert upload["sha256"] == hashlib.sha256(file.read_bytes()).hexdigest()
            data = {"source": "upload", "dataset": upload["id"]}
            spec = ppca_spec(model__init="maximum_likelihood", data=data)
            assert (await client.validate(spec))["spec"]["data"]["n"] == 50_000

    asyncio.run(main())


def test_refusals_and_what_does_not_answer_are_told_alike(connected: AsyncClient) -> None:
    async def main() -> None:
        async with connected as client:
            with pytest.raises(Refused, match="did you mean table1") as refused:
                await client.experiments.create("tabel1")
            assert refused.value.status == 404
        url = f"http://127.0.0.1:{serve.free_port()}"
        async with AsyncClient(url, "key", for_s=0.0) as nowhere:
            assert not await nowhere.is_ready()
            with pytest.raises(NoAnswer, match=rf"^{url} does not answer .*`mpt serve` starts"):
                await nowhere.me()

    asyncio.run(main())
