"""`python -m service`: an API process."""

import argparse
import gc
import sys
from contextlib import suppress

import uvicorn
from uvicorn.config import STARTUP_FAILURE

from service.app import create_app
from service.logs import logged_process
from service.operations.start import begin
from service.web.server import Server

MAX_CONNECTIONS = 900
"""Maximum number of connections to an API process, whose open files are often limited to 1,024."""
KEEP_ALIVE_S = 10
"""Time for which an idle connection stays open. The proxy's own ones are closed sooner
(deploy/Caddyfile): otherwise it may send a request on one that ends at that moment."""
SWITCH_S = 0.0005
"""Time after which a computing thread lets another run. With Python's 5 ms, the event loop waits
for each of the handlers in turn, several times in a request."""
STOP_S = 10
"""Maximum time for which a process that stops waits for answers that are being sent."""


@logged_process
def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m service", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8765)
    arguments = parser.parse_args()
    sys.setswitchinterval(SWITCH_S)
    settings = begin()
    app = create_app(settings)
    app.openapi()  # or the first 404 or 405 builds it, and stops the event loop for 0.6 s
    config = uvicorn.Config(
        app,
        host=arguments.host,
        port=arguments.port,
        log_config=None,
        access_log=False,
        ws="none",
        limit_concurrency=MAX_CONNECTIONS,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=STOP_S,
    )
    server = Server(config)
    # Loaded modules stay in memory. Scanning them in each collection would block for 0.15 s.
    gc.collect()
    gc.freeze()
    with suppress(KeyboardInterrupt):
        server.run()
    if not server.started:
        raise SystemExit(STARTUP_FAILURE)


if __name__ == "__main__":
    main()
