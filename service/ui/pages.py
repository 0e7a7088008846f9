"""The pages of the dashboard, and the files that they load. None holds data: they ask the API."""

import hashlib
import posixpath
import re
from http import HTTPStatus
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import FileResponse, HTMLResponse, Response
from jinja2 import Environment, PackageLoader, select_autoescape

from service.errors import ApiError
from service.headers import PAGE, PAGE_FILE
from service.ui.help import documents
from service.ui.sign_in import SIGN_IN_PAGE

router = APIRouter(include_in_schema=False)

STATIC = Path(__file__).parent / "static"
FILES = {
    file.relative_to(STATIC).as_posix(): file
    for file in sorted(STATIC.rglob("*"))
    if file.is_file()
}
"""By their names, below /static/EDITION/."""


def _edition() -> str:
    """Another one as soon as one file differs: browsers may keep what they have."""
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
"""Those of a machine may be anything."""

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
"""Its name, which its script knows it by, and its title."""
NAVIGATION = {path: PAGES[path][1] for path in ("/", "/sweeps", "/paper", "/lab")} | {
    "/help": "Help"
}

_templates = Environment(
    loader=PackageLoader("service.ui"), autoescape=select_autoescape(), trim_blocks=True
)


def _scripts(name: str, known: list[str]) -> list[str]:
    """A script and all that it imports, each once: a browser that is told of them asks for all at
    once, and not for those of one after those of another."""
    if name not in known:
        known.append(name)
        for target in re.findall(r'from "(\..*?)"', FILES[name].read_text()):
            _scripts(posixpath.normpath(posixpath.join(posixpath.dirname(name), target)), known)
    return known


SCRIPTS = {
    name: _scripts(f"pages/{name}.js", _scripts("main.js", [])) for name, _ in PAGES.values()
}
"""What each page runs."""


def _page(request: Request) -> HTMLResponse:
    name, title = PAGES[request.scope["route"].path]
    return _framed(request, "page.html", name=name, title=title, scripts=SCRIPTS[name])


def _framed(request: Request, template: str, **what: Any) -> HTMLResponse:
    text = _templates.get_template(template).render(
        links=NAVIGATION, here=request.url.path, files=f"/static/{EDITION}", **what
    )
    return HTMLResponse(text, headers=PAGE)


for path in PAGES:
    router.add_api_route(path, _page, methods=["GET"])


@router.get("/docs")
def documentation() -> HTMLResponse:
    """The API's own document, to read and to try."""
    text = _templates.get_template("docs.html").render(files=f"/static/{EDITION}")
    return HTMLResponse(text, headers=PAGE)


@router.get("/help")
@router.get("/help/{name}")
def help_page(request: Request) -> HTMLResponse:
    """One of the documents."""
    document = documents().get(request.url.path)
    if document is None:
        raise ApiError(HTTPStatus.NOT_FOUND, "not_found", "there is no such page: /help lists them")
    return _framed(
        request, "help.html", name="help", title=document.title, document=document,
        documents=documents(),
    )  # fmt: skip


@router.get("/static/{edition}/{name:path}")
def static_file(edition: str, name: str) -> Response:
    """One of FILES; what names another edition gets this one, and keeps it not."""
    file = FILES.get(name)
    if file is None:
        raise ApiError(HTTPStatus.NOT_FOUND, "not_found", "the pages have no such file")
    headers = PAGE_FILE if edition == EDITION else {}
    return FileResponse(file, media_type=MEDIA_TYPES.get(file.suffix), headers=headers)
