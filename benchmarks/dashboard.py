"""Speed of the pages in a real browser: claims of `benchmarks.service`."""

import gzip
import statistics
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from http.client import HTTPConnection

from playwright.sync_api import BrowserContext, Response

from benchmarks.figures import Figure
from benchmarks.listening import add_users, looks
from benchmarks.queries import MANY, store_many, store_series
from service.db.engine import Database
from service.events.poller import MAX_USER_STREAMS
from service.queue.lease import Claim
from service.settings import Settings
from tests.support.attempts import claimed
from tests.support.browser import chromium
from tests.support.filled_lab import points
from tests.support.processes import Lab

LOADS = 5
DASHBOARDS = 50
TOGETHER_S = 0.3
"""A page waits so long for more events before it asks again."""
SEEN = """
    window.seen = new Promise((resolve) => {
        const wanted = new MutationObserver(() => {
            if (!document.querySelector(SELECTOR)) return;
            wanted.disconnect();
            requestAnimationFrame(() => requestAnimationFrame(() => resolve(performance.now())));
        });
        wanted.observe(document, {childList: true, subtree: true});
    });
"""
"""Resolve at the first painted frame that has the expected content, in ms since the navigation."""
PANNED = """async ({files, points, frames}) => {
    const {html, render} = await import(`${files}/vendor/preact-htm.js`);
    const {Chart} = await import(`${files}/chart.js`);
    const x = Array.from({length: points}, (_, i) => i);
    const value = x.map((i) => Math.exp(-i / 3e4) + 0.05 * Math.random());
    const std_err = x.map(() => 0.02);
    const series = [{label: "loss", x, value, std_err}];
    const place = document.createElement("div");
    document.getElementById("main").replaceChildren(place);
    render(html`<${Chart} title="panned" series=${series} xLabel="step" yLabel="nats" />`, place);
    const frame = () => new Promise(requestAnimationFrame);
    const press = (name) => place.querySelector(`[aria-label="${name}"]`).click();
    await frame();
    press("Zoom in");
    await frame();
    const began = performance.now();
    for (let i = 0; i < frames; i++) {
        press(i % 4 < 2 ? "To the left" : "To the right");
        await frame();
    }
    return 1000 * frames / (performance.now() - began);
}"""


def pages(settings: Settings) -> Iterator[Figure]:
    """The list of 100,000 experiments, a comparison of 100 with 1,000 points each, and a chart of
    100,000 points that is panned: by Chromium, without a GPU."""
    with closing(Database(settings.url)) as database:
        store_many(database)
        with database.transaction() as session:
            for i, one in enumerate(MANY):
                store_series(session, 10 + i, one, 1000)
    with _browsing(settings) as context:
        took, loaded = _painted(context, "/", "tbody tr")
        yield Figure("list of 100,000, painted", took, "ms", at_most=300)
        packed = sum(len(gzip.compress(content)) for content in loaded.values())
        yield Figure("the page and its files", sum(map(len, loaded.values())) / 1e3, "kB")
        yield Figure("the same, compressed", packed / 1e3, "kB", at_most=200)
        took, _ = _painted(context, f"/compare?ids={','.join(MANY)}", "canvas")
        yield Figure("100 compared, painted", took, "ms", at_most=1000)
        yield Figure("100,000 points, panned", _panned(context), "1/s", at_least=30)


@contextmanager
def _browsing(settings: Settings) -> Iterator[BrowserContext]:
    """A browser that is signed in at an API process."""
    lab = Lab(settings, settings.store / "log")
    lab.start("api", "api", "--port", str(lab.port))
    url = f"http://127.0.0.1:{lab.port}"
    try:
        lab.client()
        with chromium() as browser:
            context = browser.new_context(base_url=url)
            page = context.new_page()
            page.goto("/sign-in")
            page.fill("#key", settings.key_file.read_text().strip())
            page.keyboard.press("Enter")
            page.wait_for_url(f"{url}/")
            page.close()
            yield context
    finally:
        lab.stop()


def _painted(context: BrowserContext, path: str, selector: str) -> tuple[float, dict[str, bytes]]:
    """Return the median time in ms from the navigation to the first frame with the content, and the
    bytes of the page and its files by their addresses."""
    answers: list[Response] = []
    loaded: dict[str, bytes] = {}
    took = []
    with closing(context.new_page()) as page:
        page.add_init_script(SEEN.replace("SELECTOR", repr(selector)))
        page.on("response", lambda answer: answers.append(answer))
        for _ in range(LOADS):
            page.goto(path)
            took.append(page.evaluate("window.seen"))
            if not loaded:  # later ones come from the cache of the browser
                loaded = {one.url: one.body() for one in answers if "/v1/" not in one.url}
    return statistics.median(took), loaded


def _panned(context: BrowserContext) -> float:
    """Frames a second."""
    with closing(context.new_page()) as page:
        page.goto("/")
        page.wait_for_selector("tbody tr")
        files = page.locator("link[rel=icon]").evaluate("icon => icon.href").rsplit("/", 1)[0]
        return float(page.evaluate(PANNED, {"files": files, "points": 100_000, "frames": 60}))


def dashboards(settings: Settings) -> Iterator[Figure]:
    """Latency of one experiment's status for one client, while 50 open pages show the list and
    reload it after each event, and while a run also writes records."""
    with closing(Database(settings.url)) as database:
        claim = claimed(database)
        key = settings.key_file.read_text().strip()
        lab = Lab(settings, settings.store / "log")
        lab.start("api", "api", "--port", str(lab.port), MPT_RATE_PER_USER="1000000")
        try:
            lab.client()
            keys = add_users(lab.port, key, -(-DASHBOARDS // MAX_USER_STREAMS))
            with ExitStack() as stack:
                stopping = threading.Event()
                pool = stack.enter_context(ThreadPoolExecutor(DASHBOARDS + 1))
                stack.callback(stopping.set)
                for i in range(DASHBOARDS):
                    pool.submit(_dashboard, lab.port, keys[i % len(keys)], stopping)
                yield from _status(lab.port, key, claim.experiment_id, "50 pages open")
                pool.submit(_run, database, claim, stopping)
                yield from _status(lab.port, key, claim.experiment_id, "and a run records")
        finally:
            lab.stop()


def _status(port: int, key: str, experiment_id: str, how: str) -> Iterator[Figure]:
    percent = statistics.quantiles(looks(port, key, experiment_id), n=100, method="inclusive")
    yield Figure(f"status p50, {how}", percent[49], "ms")
    yield Figure(f"status p99, {how}", percent[98], "ms", at_most=20)


def _dashboard(port: int, key: str, stopping: threading.Event) -> None:
    """Poll the list of experiments like `static/live.js`."""
    headers = {"Authorization": f"Bearer {key}"}
    with (
        closing(HTTPConnection("127.0.0.1", port, timeout=60)) as stream,
        closing(HTTPConnection("127.0.0.1", port, timeout=60)) as http,
    ):
        listens = {**headers, "Accept": "text/event-stream"}
        stream.request("GET", "/v1/events", headers=listens)
        events = stream.getresponse()
        while not stopping.is_set():
            http.request("GET", "/v1/experiments?metrics=lml&metrics=mpt&limit=50", headers=headers)
            http.getresponse().read()
            events.read1(65_536)  # until something has happened, or a ping
            time.sleep(TOGETHER_S)


def _run(database: Database, claim: Claim, stopping: threading.Event) -> None:
    """A point for each of two seeds, and the progress, four times a second."""
    seq, x = 1, 1
    while not stopping.wait(0.25):
        seq = points(database, claim, range(x, x + 1), first=seq)
        x += 1
