"""The pages of the dashboard and the files they load. No page contains data."""

import hashlib
import json
import posixpath
import re
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import HTMLResponse, Response
from jinja2 import Environment, PackageLoader, select_autoescape
from starlette.exceptions import HTTPException as StarletteHTTPException

from mptcore.protocol.metrics import RESULTS, WITHOUT_UNIT
from service.accounts.sign_in_routes import SIGN_IN_PAGE
from service.experiments.filters.fields import FAMILIES
from service.refusals import ApiError
from service.ui.help import documents, search_index
from service.ui.help_search import MAX_RESULTS, search
from service.vocabulary import Status
from service.web.files import RangedFile
from service.web.headers import PAGE, PAGE_FILE

router = APIRouter(include_in_schema=False)

STATIC = Path(__file__).parent / "static"
FILES = {
    file.relative_to(STATIC).as_posix(): file
    for file in sorted(STATIC.rglob("*"))
    if file.is_file()
}
"""Files by name, below /static/EDITION/."""


def _edition() -> str:
    """Return a string that changes with every file, so that browsers may cache the files."""
    digest = hashlib.sha256()
    for name, file in FILES.items():
        digest.update(name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:16]


EDITION = _edition()
MEDIA_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".svg": "image/svg+xml",
}
"""Media types, independent of the machine's configuration."""

PAGES = {
    "/": ("experiments", "Experiments"),
    "/experiments/{experiment_id}": ("experiment", "Experiment"),
    "/compare": ("compare", "Compare"),
    "/sweeps": ("sweeps", "Sweeps"),
    "/sweeps/{sweep_id}": ("sweep", "Sweep"),
    "/new": ("new", "New"),
    "/paper": ("paper", "The paper"),
    "/lab": ("lab", "The lab"),
    SIGN_IN_PAGE: ("sign-in", "Sign in"),
}
"""Name and title of each page. Scripts use the name."""
NAVIGATION = {path: PAGES[path][1] for path in ("/", "/sweeps", "/paper", "/lab")} | {
    "/help": "Help"
}

OF_EXPERIMENTS = ("experiments", "compare")
"""First parts of the addresses that belong to the list of experiments."""

MAX_QUERY = 200
"""Characters of a search in the help."""

_templates = Environment(
    loader=PackageLoader("service.ui"), autoescape=select_autoescape(), trim_blocks=True
)


def _scripts(name: str, known: list[str]) -> list[str]:
    """Return a script and all its imports, each once, so that a browser can request all at once
    instead of one after the other."""
    if name not in known:
        known.append(name)
        for target in re.findall(r'from "(\..*?)"', FILES[name].read_text()):
            _scripts(posixpath.normpath(posixpath.join(posixpath.dirname(name), target)), known)
    return known


SCRIPTS = {
    name: _scripts(f"pages/{name}.js", _scripts("main.js", [])) for name, _ in PAGES.values()
}
"""Scripts of each page."""


HEADINGS = {
    name: (label, None if name in WITHOUT_UNIT else "nats") for name, label in RESULTS.items()
}
"""Heading and unit of each metric that is a result."""


def _page(request: Request) -> HTMLResponse:
    name, title = PAGES[request.scope["route"].path]
    issuer = request.app.state.settings.oidc_issuer
    provider = None if issuer is None else urlsplit(issuer).netloc
    return _framed(
        request, "page.html", name=name, title=title, scripts=SCRIPTS[name], provider=provider
    )


def _wants_page(request: Request) -> bool:
    """Return whether a browser asks for a page. Scripts and clients accept JSON or anything."""
    is_page = request.method == "GET" and not request.url.path.startswith(("/v1/", "/static/"))
    return is_page and "text/html" in request.headers.get("accept", "")


def _missing(request: Request) -> HTMLResponse:
    page = _framed(request, "missing.html", name="missing", title="No such page")
    page.status_code = HTTPStatus.NOT_FOUND
    return page


def show_missing_pages(app: FastAPI) -> None:
    """Answer a browser that asks for an unknown path with a page. Other clients get a problem."""
    answer: Any = app.exception_handlers[StarletteHTTPException]

    async def missing_or_problem(request: Request, error: Exception) -> Response:
        is_unknown = getattr(error, "status_code", None) == HTTPStatus.NOT_FOUND
        if is_unknown and _wants_page(request):
            return _missing(request)
        response: Response = await answer(request, error)
        return response

    app.add_exception_handler(StarletteHTTPException, missing_or_problem)


def _framed(request: Request, template: str, **what: Any) -> HTMLResponse:
    first = request.url.path.split("/")[1]
    text = _templates.get_template(template).render(
        statuses=" ".join(Status),
        families=" ".join(FAMILIES),
        headings=json.dumps(HEADINGS),
        links=NAVIGATION,
        here=request.url.path,
        section="/" if first in OF_EXPERIMENTS else f"/{first}",
        files=f"/static/{EDITION}",
        **what,
    )
    return HTMLResponse(text, headers=PAGE)


for path in PAGES:
    router.add_api_route(path, _page, methods=["GET"])


@router.get("/docs")
def documentation() -> HTMLResponse:
    """Show the API's own documentation."""
    text = _templates.get_template("docs.html").render(files=f"/static/{EDITION}")
    return HTMLResponse(text, headers=PAGE)


@router.get("/help")
@router.get("/help/{name}")
def help_page(request: Request) -> HTMLResponse:
    """Show a document, or what a search for `q` found in all of them."""
    document = documents().get(request.url.path)
    if document is None and _wants_page(request):
        return _missing(request)
    if document is None:
        raise ApiError(HTTPStatus.NOT_FOUND, "not_found", "there is no such page: /help lists them")
    query = request.query_params.get("q", "").strip()[:MAX_QUERY]
    return _framed(
        request, "help.html", name="help", title=f"Search: {query}" if query else document.title,
        document=document, documents=documents(), query=query,
        results=search(search_index(), query) if query else [], most=MAX_RESULTS,
    )  # fmt: skip


@router.get("/static/{edition}/{name:path}")
def static_file(edition: str, name: str) -> Response:
    """Return one of FILES. A request for another edition gets this one without caching."""
    file = FILES.get(name)
    if file is None:
        raise ApiError(HTTPStatus.NOT_FOUND, "not_found", "the pages have no such file")
    headers = PAGE_FILE if edition == EDITION else {}
    return RangedFile(file, media_type=MEDIA_TYPES.get(file.suffix), headers=headers)
