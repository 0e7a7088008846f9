"""`python -m service`: an API process."""

import argparse

import uvicorn

from service.logs import configure_logs
from service.main import create_app
from service.settings import Settings


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m service", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8765)
    arguments = parser.parse_args()
    settings = Settings()
    configure_logs(settings.log_form)
    uvicorn.run(
        create_app(settings),
        host=arguments.host,
        port=arguments.port,
        log_config=None,
        access_log=False,
    )


if __name__ == "__main__":
    main()
