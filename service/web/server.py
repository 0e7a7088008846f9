"""The server of an API process."""

import socket

import uvicorn
from fastapi import FastAPI


class Server(uvicorn.Server):
    """uvicorn's server, which waits for all responses when it stops. This one ends the event
    streams first."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        app = self.config.app
        assert isinstance(app, FastAPI)
        app.state.poller.close()
        await super().shutdown(sockets)
