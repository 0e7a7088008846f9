"""Hooks of schemathesis: some requests get many parameters, or a body that is deep, large or wrong
in many places. Their answers must be documented in the OpenAPI document, and short."""

import random
from collections.abc import Callable
from typing import Any

import schemathesis

from tests.fuzz.costs import MAX_ANSWER_BYTES

SHARE = 0.03
MAX_ERRORS = 100
LIST = [None] * 20_000
"""Wrong in each place, for any field that is a list."""

chance = random.Random(0)


def _deep() -> Any:
    body: Any = []
    for _ in range(60):  # more are refused before the body is validated
        body = [body]
    return body


BODIES: dict[str, Callable[[], Any]] = {
    "deep": _deep,
    "a long list": lambda: LIST,
    "many keys": lambda: {f"a{i}": 1 for i in range(20_000)},
    "long text": lambda: {"name": "a" * 500_000},
}


@schemathesis.hook
def before_call(context: Any, case: Any, kwargs: Any) -> None:
    if chance.random() > SHARE:
        return
    if case.media_type != "application/json":
        case.query = {**(case.query or {}), **{f"a{i}": "1" for i in range(300)}}
    elif isinstance(case.body, dict) and chance.random() < 0.5:
        case.body = dict.fromkeys(case.body, LIST)
    else:
        case.body = BODIES[chance.choice([*BODIES])]()


@schemathesis.check
def answers_are_short(ctx: Any, response: Any, case: Any) -> None:
    if response.status_code == 422:
        assert len(response.content) <= MAX_ANSWER_BYTES
        assert len(response.json().get("errors", [])) <= MAX_ERRORS
