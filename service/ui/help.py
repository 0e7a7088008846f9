"""Show the documents as HTML. They are the Markdown files and notebooks of the repository, which
the distribution contains too. A link from one document to another leads to its page."""

import base64
import json
import os
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from markdown_it import MarkdownIt
from markdown_it.token import Token
from mdit_py_plugins.anchors import anchors_plugin

from service.ui.help_search import Section, sections

DOCUMENTS = Path(__file__).parent / "documents"
README = DOCUMENTS / "README.md"

_PATTERNS = ("*.md", "docs/*.md", "docs/*/*.md", "docs/*/*.ipynb")
_files = [file for pattern in _PATTERNS for file in DOCUMENTS.glob(pattern)]
ADDRESSES = {
    file: "/help" if file == README else f"/help/{file.stem.lower()}" for file in sorted(_files)
}
"""Page of each document."""

_markdown = MarkdownIt("commonmark", {"html": False}).enable("table")
_markdown.use(anchors_plugin, max_level=6)
_markdown.add_render_rule(
    "table_open",
    lambda *_: '<div class="scroll" role="group" aria-label="Table" tabindex="0"><table>',
)
_markdown.add_render_rule("table_close", lambda *_: "</table></div>")


class Document(NamedTuple):
    """A document as a page. Its HTML loads nothing."""

    title: str
    html: str
    sections: list[Section]


@cache
def documents() -> dict[str, Document]:
    """Return the documents by address: the README, the others in the order of its last table, and
    then the documents without a link there."""
    linked = dict.fromkeys(_place(README, href) for href in reversed([*_links(README)]))
    order = [file for file in (README, *reversed(linked)) if file in ADDRESSES]
    return {ADDRESSES[file]: _document(file) for file in dict.fromkeys([*order, *ADDRESSES])}


@cache
def search_index() -> list[Section]:
    """Return the sections of all documents."""
    return [section for document in documents().values() for section in document.sections]


def _document(file: Path) -> Document:
    tokens = _markdown.parse(_text(file))
    parts = sections(ADDRESSES[file], tokens)
    inner = _inner(tokens)
    link = None
    for token in inner:
        if token.type == "image":
            token.attrs["src"] = _as_data(file, str(token.attrs["src"]))
        elif token.type == "link_open":
            link = _to_page(file, token)
        elif token.type == "link_close" and link is not None:
            token.tag = link.tag
    html = _markdown.renderer.render(tokens, _markdown.options, {})
    return Document(tokens[1].content, html, parts)


def _inner(tokens: Sequence[Token]) -> list[Token]:
    return [inner for token in tokens for inner in token.children or []]


def _links(file: Path) -> Iterator[str]:
    for token in _inner(_markdown.parse(_text(file))):
        if token.type == "link_open":
            yield str(token.attrs["href"])


def _to_page(file: Path, link: Token) -> Token:
    """Replace a link to a document without a page by its text."""
    target, sharp, anchor = str(link.attrs["href"]).partition("#")
    if target and not target.startswith(("http:", "https:")):
        page = ADDRESSES.get(_place(file, target))
        link.tag = "a" if page else "span"
        link.attrs = {"href": f"{page}{sharp}{anchor}"} if page else {}
    return link


def _place(file: Path, target: str) -> Path:
    """Return the path of a link's target, using only names: a symbolic link here is a file in the
    distribution."""
    return Path(os.path.normpath(file.parent / target.partition("#")[0]))


def _as_data(file: Path, source: str) -> str:
    """Return a picture as a data URL."""
    if source.startswith("data:"):
        return source
    picture = _place(file, source)
    kind = "svg+xml" if picture.suffix == ".svg" else "png"
    return f"data:image/{kind};base64,{base64.b64encode(picture.read_bytes()).decode()}"


def _text(file: Path) -> str:
    """Return a document as Markdown."""
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".md":
        return text
    return "\n\n".join(part for cell in json.loads(text)["cells"] for part in _of_cell(cell))


def _of_cell(cell: dict[str, Any]) -> Iterator[str]:
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        yield source
        return
    yield f"```python\n{source}\n```"
    for output in cell["outputs"]:
        shown = output.get("data") or {"text/plain": output["text"]}
        if "image/png" in shown:
            yield f"![what the code above draws](data:image/png;base64,{shown['image/png']})"
        else:
            yield f"```text\n{''.join(shown['text/plain']).rstrip()}\n```"
