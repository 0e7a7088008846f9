"""The command `mpt` as a program types it."""

import io
import os
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from unittest.mock import patch

from mptlab.cli import main
from tests.support.processes import MPT


def mpt(environment: dict[str, str], *arguments: str, text: str = "") -> tuple[int, str, str]:
    """Exit status, output, and warnings."""
    done = subprocess.run(
        [*MPT, *arguments], env=environment, input=text, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout, done.stderr


def mpt_here(environment: dict[str, str], *arguments: str, text: str = "") -> tuple[int, str, str]:
    """The same in this process, where the start of one would take longer than the command."""
    output, error = io.StringIO(), io.StringIO()
    status: object = 0
    with (
        patch.dict(os.environ, environment, clear=True),
        patch.object(sys, "argv", ["mpt", *arguments]),
        patch.object(sys, "stdin", io.StringIO(text)),
        redirect_stdout(output),
        redirect_stderr(error),
    ):
        try:
            main()
        except SystemExit as end:
            status = end.code
    return status if isinstance(status, int) else 0, output.getvalue(), error.getvalue()
