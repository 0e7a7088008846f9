"""Limits that uvicorn lacks: the number of connections, one request at a time on each, the size and
time of a request's head, and the time for which an answer may not be taken; and a server that ends
its event streams when it stops."""

import asyncio
import logging
import math
import socket
import time
from collections import Counter
from typing import ClassVar

import uvicorn
from fastapi import FastAPI
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from service.web.bodies import AWAITED_SINCE
from service.web.rates import network

log = logging.getLogger(__name__)

HEAD_BYTES = 32 * 1024
"""Maximum size of a request line with its headers."""
LARGE_HEAD = f"the head of a request has at most {HEAD_BYTES} bytes"
HEAD_S = 20.0
"""Time limit for the head, from the start of a connection or the first byte of its next request."""
STALL_S = 30.0
"""A response is cut off if the client reads nothing for this long. Otherwise it would prevent the
server from stopping."""
MAX_UNSENT_BYTES = 512 * 2**20
"""Bytes of responses in a process that clients have not read yet. Above it the response that has
waited the longest is cut off, of the user with the most such bytes. Otherwise one client's unread
curves would fill the memory."""
MAX_CONNECTIONS = 900
"""Maximum number of connections to an API process, whose open files are often limited to 1,024."""
MAX_OF_ADDRESS = 200
"""Maximum number of connections from one address to an API process. A trusted proxy may have
more."""
TOO_MANY = (
    b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 2\r\nConnection: close\r\n"
    b"Content-Type: text/plain; charset=utf-8\r\nContent-Length: 20\r\n\r\ntoo many connections"
)


WARNED_EVERY_S = 1.0


class SeldomWarnings(logging.Filter):
    """Passes one of uvicorn's warnings a second: anyone may send thousands of requests that are not
    HTTP."""

    _passed_at = -math.inf

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno != logging.WARNING:
            return True
        at = time.monotonic()
        if at < self._passed_at + WARNED_EVERY_S:
            return False
        self._passed_at = at
        return True


SELDOM_WARNINGS = SeldomWarnings()


class _Pipelined(Exception):
    """The client sent a request before the answer to the previous one."""


class _LargeHead(Exception):
    """The head of a request in one piece is too large."""


class BoundedHeads(HttpToolsProtocol):
    """uvicorn's protocol with the limits of this module."""

    _network = ""
    _is_pipelined = False
    _head_bytes = 0
    _parsed_bytes = 0
    """Bytes of the head that are parsed."""
    _framing_bytes = 0
    """Bytes since the last piece of a body: of trailers and chunk sizes, which no other limit
    counts."""
    _in_head = True
    _head_timer: asyncio.TimerHandle | None = None
    _stall_timer: asyncio.TimerHandle | None = None
    _idle_since = 0.0  # by a clock that is finer than the milliseconds of uvloop
    _unread_since = 0.0
    _has_warned: ClassVar = False  # of a proxy that is not trusted

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._network = network(self._address)
        self._idle_since = time.monotonic()
        self._await_head()
        if len(self.connections) > MAX_OF_ADDRESS:
            self._make_room()

    def on_response_complete(self) -> None:
        self._idle_since = time.monotonic()
        super().on_response_complete()

    @property
    def _is_idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    @property
    def _body_awaited_since(self) -> float | None:
        """Time since which the service is receiving the request's body, if it is."""
        if self._is_idle or not self.cycle.more_body:
            return None
        since: float | None = self.cycle.scope["state"].get(AWAITED_SINCE)
        return since

    def _make_room(self) -> None:
        """Close the connection that has been idle for the longest time if there are too many. If
        none is idle, end the one whose body has been awaited for the longest time, except uploads.
        If there is none of these either, refuse the new connection."""
        others = [
            one
            for one in self.connections
            if isinstance(one, BoundedHeads) and one is not self and not one.transport.is_closing()
        ]
        if not self._is_of_proxy:
            same = [one for one in others if one._network == self._network]
            if len(same) >= MAX_OF_ADDRESS:
                return self._replace_one_of(same)
        if len(others) >= MAX_CONNECTIONS:
            self._replace_one_of(others)

    def _replace_one_of(self, others: list["BoundedHeads"]) -> None:
        idle = [one for one in others if one._is_idle]
        if idle:
            min(idle, key=lambda one: one._idle_since).transport.close()
        else:
            awaiting = [one for one in others if one._body_awaited_since is not None]
            longest = min(awaiting, key=lambda one: one._body_awaited_since or 0.0, default=self)
            longest.transport.write(TOO_MANY)
            longest.transport.close()

    @property
    def _address(self) -> str | None:
        return self.client[0] if self.client else None

    @property
    def _is_of_proxy(self) -> bool:
        """True if the connection may carry the requests of many addresses."""
        proxied = self.config.loaded_app
        if not isinstance(proxied, ProxyHeadersMiddleware):
            return False
        return self._address is None or self._address in proxied.trusted_hosts

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        self._go_on_sending()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread_since = time.monotonic()
        self._watch_sending()
        self._bound_unsent()

    def _bound_unsent(self) -> None:
        unread = [
            one
            for one in self.connections
            if isinstance(one, BoundedHeads) and one._stall_timer is not None
        ]
        sizes = {one: one.transport.get_write_buffer_size() for one in unread}
        while sum(sizes.values()) > MAX_UNSENT_BYTES:
            of_reader = Counter[object]()
            for one, size in sizes.items():
                of_reader[one._reader] += size
            ((most, _),) = of_reader.most_common(1)
            longest = min(
                (one for one in sizes if one._reader == most), key=lambda one: one._unread_since
            )
            del sizes[longest]
            longest.transport.abort()

    @property
    def _reader(self) -> object:
        """The user whose response is being sent or, without one, the network of the client."""
        caller = self.cycle.scope["state"].get("caller") if self.cycle else None
        return self._network if caller is None else caller.id

    def _watch_sending(self) -> None:
        left = self.transport.get_write_buffer_size()
        self._stall_timer = self.loop.call_later(STALL_S, self._end_if_not_taken, left)

    def _end_if_not_taken(self, before: int) -> None:
        if self.transport.get_write_buffer_size() < before:
            self._watch_sending()
        else:
            self.transport.abort()

    def resume_writing(self) -> None:
        self._go_on_sending()
        super().resume_writing()

    def _go_on_sending(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None

    def data_received(self, data: bytes) -> None:
        if self._is_pipelined:
            return
        # A body that ends in this piece may be followed by a head: both are then counted, and a
        # piece is never larger than 256 KiB.
        if self._in_head:
            self._head_bytes += len(data)
        else:
            self._framing_bytes += len(data)
        super().data_received(data)
        if self._framing_bytes > HEAD_BYTES:
            self._refuse(f"a body has at most {HEAD_BYTES} bytes of trailers and chunk sizes")
        if self._in_head and self._head_bytes > HEAD_BYTES:
            self._refuse(LARGE_HEAD)

    def on_body(self, body: bytes) -> None:
        self._framing_bytes = 0
        super().on_body(body)

    def on_message_begin(self) -> None:
        if not self._is_idle:
            self._is_pipelined = True
            raise _Pipelined  # so that the parser stops
        self._framing_bytes = self._parsed_bytes = 0
        super().on_message_begin()
        if not self._in_head:
            self._await_head()

    def on_url(self, url: bytes) -> None:
        self._count_parsed(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count_parsed(len(name) + len(value) + len(": \r\n"))
        super().on_header(name, value)

    def _count_parsed(self, size: int) -> None:
        self._parsed_bytes += size
        if self._parsed_bytes > HEAD_BYTES:
            raise _LargeHead  # so that the parser stops

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._head_bytes = 0
        self._stop_waiting()
        self._warn_of_proxy()
        super().on_headers_complete()

    def _warn_of_proxy(self) -> None:
        """Log once per process that a proxy seems not to be trusted."""
        if BoundedHeads._has_warned or self._is_of_proxy:
            return
        if any(name == b"x-forwarded-for" for name, _ in self.headers):
            BoundedHeads._has_warned = True
            log.warning(
                "%s sent X-Forwarded-For, which is ignored: its clients share one limit of "
                "requests. If it is your proxy, set FORWARDED_ALLOW_IPS to this address",
                self._address,
            )

    def send_400_response(self, msg: str) -> None:
        """Refuse a request that is not HTTP. A request that is sent before the previous answer is
        only dropped, and the connection closes after that answer. Otherwise the loop would parse
        thousands of requests in one piece before it serves anybody else."""
        if self._is_pipelined:
            self.cycle.keep_alive = False
        elif self._parsed_bytes > HEAD_BYTES:
            super().send_400_response(LARGE_HEAD)
        else:
            super().send_400_response(msg)

    def _await_head(self) -> None:
        self._in_head = True
        self._stop_waiting()
        message = f"the head of a request did not arrive within {HEAD_S:g} s"
        self._head_timer = self.loop.call_later(HEAD_S, self._refuse, message)

    def _stop_waiting(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _refuse(self, message: str) -> None:
        if not self.transport.is_closing():
            self.send_400_response(message)


class Server(uvicorn.Server):
    """uvicorn's server, which waits for all responses when it stops. This one ends the event
    streams first."""

    def __init__(self, config: uvicorn.Config):
        super().__init__(config)
        logging.getLogger("uvicorn.error").addFilter(SELDOM_WARNINGS)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        app = self.config.app
        assert isinstance(app, FastAPI)
        app.state.poller.close()
        await super().shutdown(sockets)
