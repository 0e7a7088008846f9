"""Statements compiled once in a test process, as they are in a process of the service, which has
one engine. Each test has engines of its own, and a quarter of the time of the tests of the service
was compiling the same statements again."""

from functools import partial
from typing import Any

from sqlalchemy import create_engine
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite
from sqlalchemy.util import LRUCache

from service.db import engine

SIZE = 5000
"""More than there are."""


def compile_once() -> None:
    """Have all engines that the service makes from now on share what is compiled: its key in the
    cache has the dialect in it, and these are alike."""
    for dialect in (PGDialect_psycopg, SQLiteDialect_pysqlite):
        dialect.__eq__ = _are_alike  # type: ignore[method-assign]
        dialect.__hash__ = _hash  # type: ignore[assignment, method-assign]
    options: dict[str, Any] = {"compiled_cache": LRUCache(SIZE)}
    engine.create_engine = partial(create_engine, execution_options=options)  # type: ignore


def _are_alike(one: object, other: object) -> bool:
    return type(one) is type(other)


def _hash(one: object) -> int:
    return hash(type(one))
