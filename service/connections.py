"""What uvicorn leaves open: what a connection may cost, by a head that is too large or too slow and
by an answer that no one takes; and that a server that stops tells its event streams."""

import asyncio
import socket

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_BYTES = 64 * 1024
"""Of a request line with its headers."""
HEAD_S = 20.0
"""For it to come, from a connection's beginning or the first byte of its next request."""
STALL_S = 30.0
"""An answer of which the other end takes nothing for so long is cut off: it would keep a server
that stops from ending."""


class BoundedHeads(HttpToolsProtocol):
    """uvicorn's protocol, which ends a connection whose request's head is too large or too slow, or
    whose answer is not taken."""

    _head_bytes = 0
    _in_head = True
    _head_timer: asyncio.TimerHandle | None = None
    _stall_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        self._go_on_sending()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_sending()

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
        # A body that ends in this piece may be followed by a head: both are then counted, and a
        # piece is never larger than 256 KiB.
        if self._in_head:
            self._head_bytes += len(data)
        super().data_received(data)
        if self._in_head and self._head_bytes > HEAD_BYTES:
            self._refuse(f"the head of a request is at most {HEAD_BYTES} bytes")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if not self._in_head:
            self._await_head()

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._head_bytes = 0
        self._stop_waiting()
        super().on_headers_complete()

    def _await_head(self) -> None:
        self._in_head = True
        self._stop_waiting()
        message = f"the head of a request did not come within {HEAD_S:g} s"
        self._head_timer = self.loop.call_later(HEAD_S, self._refuse, message)

    def _stop_waiting(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _refuse(self, message: str) -> None:
        if not self.transport.is_closing():
            self.send_400_response(message)


class Server(uvicorn.Server):
    """uvicorn's, which waits for all answers to end when it stops: event streams end then, too."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        app = self.config.app
        assert isinstance(app, FastAPI)
        app.state.poller.close()
        await super().shutdown(sockets)
