"""`python -m service`: an API process."""

import argparse

import uvicorn

from service.connections import BoundedHeads
from service.main import create_app
from service.start import begin


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m service", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8765)
    arguments = parser.parse_args()
    settings = begin()
    uvicorn.run(
        create_app(settings),
        host=arguments.host,
        port=arguments.port,
        log_config=None,
        access_log=False,
        http=BoundedHeads,
        ws="none",
    )


if __name__ == "__main__":
    main()
