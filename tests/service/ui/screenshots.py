"""Write screenshots of every page, light, dark and in phone size, for review: `python -m
tests.service.ui.screenshots FOLDER`."""

import argparse
import tempfile
from contextlib import closing
from pathlib import Path

from playwright.sync_api import Browser, ViewportSize

from mptlab import Client
from service.db.engine import Database
from service.operations.prepare import prepare
from service.settings import Settings
from tests.support.browser import Service, chromium, signed_in
from tests.support.filled_lab import fill

DESK = ViewportSize(width=1280, height=900)
PHONE = ViewportSize(width=390, height=844)
LOOKS = {"light": (DESK, "light"), "dark": (DESK, "dark"), "phone": (PHONE, "light")}


def pages(ids: dict[str, str]) -> dict[str, str]:
    """Address of each page by its content."""
    compared = ",".join(ids[f"succeeded {k}"] for k in (1, 2, 3))
    return {
        "experiments": "/",
        "filtered": "/?filter=metrics.lml+%3E%3E+-61&status=running",
        "nothing": "/?q=nowhere",
        **{name: f"/experiments/{ids[name]}" for name in ("running", "failed", "queued", "long")},
        "texts": f"/experiments/{ids['texts']}",
        "mutations": f"/experiments/{ids['mutations']}",
        "succeeded": f"/experiments/{ids['succeeded 2']}",
        "missing": "/experiments/0",
        "no-page": "/nothing",
        "compare": f"/compare?ids={compared}",
        "sweeps": "/sweeps",
        "sweep": f"/sweeps/{ids['sweep']}",
        "sweep-wide": f"/sweeps/{ids['wide sweep']}",
        "new": "/new",
        "new-texts": "/new?tab=texts",
        "new-spec": "/new?tab=spec",
        "paper": "/paper",
        "lab": "/lab",
        "audit": "/lab?tab=audit",
        "docs": "/docs",
        "help": "/help",
        "settings": "/help/settings",
        "vaes": "/help/vaes",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("only", nargs="*")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as store, chromium() as browser:
        settings = Settings(store=Path(store) / "store", database_url=None)
        prepare(settings)
        service = Service(settings)
        service.start()
        key = settings.key_file.read_text().strip()
        with closing(Database(settings.url)) as database, Client(service.url, key) as api:
            ids = fill(database, api, settings)
        for look in LOOKS:
            shoot(browser, service, look, ids, arguments.folder, arguments.only)
        service.stop()


def shoot(
    browser: Browser,
    service: Service,
    look: str,
    ids: dict[str, str],
    folder: Path,
    only: list[str],
) -> None:
    viewport, scheme = LOOKS[look]
    context = browser.new_context(
        viewport=viewport, color_scheme="dark" if scheme == "dark" else "light"
    )
    page = context.new_page()
    page.goto(f"{service.url}/sign-in")
    page.wait_for_selector("#key")
    page.screenshot(path=folder / f"sign-in-{look}.png")
    signed_in(page, service)
    for name, path in pages(ids).items():
        if only and name not in only:
            continue
        page.goto(f"{service.url}{path}")
        page.wait_for_load_state("networkidle")
        page.screenshot(path=folder / f"{name}-{look}.png", full_page=name != "docs")
    context.close()


if __name__ == "__main__":
    main()
