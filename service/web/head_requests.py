"""Answer HEAD where GET answers."""

from http import HTTPMethod

from starlette.types import ASGIApp, Message, Receive, Scope, Send


class HeadRequests:
    """ASGI middleware that handles a HEAD request as a GET request, and sends its status and
    headers without the body (RFC 9110, Sec. 9.3.2). It runs inside all other middleware, which
    count and log the request as HEAD."""

    def __init__(self, app: ASGIApp):
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != HTTPMethod.HEAD:
            return await self.app(scope, receive, send)

        async def send_start(message: Message) -> None:
            """Send the whole answer at its start. The server then reports a disconnected client,
            which ends a stream or a file."""
            if message["type"] == "http.response.start":
                await send(message)
                await send({"type": "http.response.body", "body": b""})

        scope.setdefault("state", {})
        as_get = {**scope, "method": HTTPMethod.GET.value}
        try:
            await self.app(as_get, receive, send_start)
        finally:
            scope.update(as_get | {"method": scope["method"]})  # the route, for logs and meters
