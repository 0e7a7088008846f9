"""Search the documents of the help by their words. The index is built once, with the pages."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from markdown_it.token import Token

MAX_WORDS = 12
MAX_RESULTS = 30
MAX_COUNT = 5
"""Occurrences of a word in a section that count."""
HEADING, TITLE = 8, 4
"""Weights of a word in the heading of its section, and in the title of its document."""
BEFORE, AFTER = 60, 140
"""Characters of a result's text before and after the place with most words."""

_WORD = re.compile(r"\w+")


class Section(NamedTuple):
    """The part of a document below a heading, as text."""

    address: str
    title: str
    heading: str
    text: str
    words: Mapping[str, int]
    """Weight of each word."""


class Result(NamedTuple):
    """A section that a search found."""

    address: str
    title: str
    heading: str
    parts: Sequence[tuple[str, bool]]
    """Text of the section, in parts; True for the words of the query."""


def sections(address: str, tokens: Sequence[Token]) -> list[Section]:
    """Return the sections of a document. The tokens are those of its Markdown."""
    title = _text(tokens[1])
    found: list[Section] = []
    anchor, heading, texts = "", title, list[str]()
    for before, token in zip([None, *tokens[:-1]], tokens, strict=True):
        if before is not None and before.type == "heading_open":
            found.append(_section(f"{address}{anchor}", title, heading, texts))
            anchor, heading, texts = f"#{before.attrs['id']}", _text(token), []
        elif token.type == "inline":
            texts.append(_text(token))
        elif token.type == "fence":
            texts.append(token.content)
    return [*found, _section(f"{address}{anchor}", title, heading, texts)]


def _text(token: Token) -> str:
    """Return the text of a paragraph, a cell or a heading, without the addresses of links."""
    children = token.children or []
    return "".join(one.content or " " for one in children if one.type != "image")


def _section(address: str, title: str, heading: str, texts: Sequence[str]) -> Section:
    text = " ".join(" ".join(texts).split())
    words = Counter({word: min(n, MAX_COUNT) for word, n in Counter(_words(text)).items()})
    words.update(dict.fromkeys(_words(heading), HEADING))
    words.update(dict.fromkeys(_words(title), TITLE))
    return Section(address, title, heading, text, words)


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def search(index: Sequence[Section], query: str) -> list[Result]:
    """Return the sections that have all words of a query, the best ones first, before all those of
    the document with this title. If there are none, return those with most of the words. A word may
    be a part of a longer one."""
    words = list(dict.fromkeys(_words(query)))[:MAX_WORDS]
    scored = [(_scores(section, words), section) for section in index]
    most = max((sum(map(bool, scores)) for scores, _ in scored), default=0)
    if most == 0:
        return []
    best = [(scores, one) for scores, one in scored if sum(map(bool, scores)) == most]
    best.sort(key=lambda pair: ({*words} != {*_words(pair[1].title)}, -sum(pair[0])))
    return [
        Result(one.address, one.title, one.heading, [*_parts(one.text, words)])
        for _, one in best[:MAX_RESULTS]
    ]


def _scores(section: Section, words: Sequence[str]) -> list[int]:
    """Return how well a section fits each word: as a whole word, as a beginning, as a part."""
    return [
        sum(
            weight * (3 if word == known else 2 if known.startswith(word) else 1)
            for known, weight in section.words.items()
            if word in known
        )
        for word in words
    ]


def _parts(text: str, words: Sequence[str]) -> Iterator[tuple[str, bool]]:
    """Yield the text around the place with most of some words."""
    pattern = re.compile("|".join(map(re.escape, words)), re.IGNORECASE)
    places = [(match.start(), match.group().lower()) for match in pattern.finditer(text)]

    def count_from(place: tuple[int, str]) -> int:
        return len({word for at, word in places if 0 <= at - place[0] < AFTER})

    best, _ = max(places, key=count_from, default=(0, ""))
    start = text.find(" ", best - BEFORE) + 1 if best > BEFORE else 0
    shown = text[start : best + AFTER]
    at = 0
    yield ("… " if start else ""), False
    for match in pattern.finditer(shown):
        yield shown[at : match.start()], False
        yield match.group(), True
        at = match.end()
    yield shown[at:] + (" …" if best + AFTER < len(text) else ""), False
