"""Imports all that the processes of a lab do, and begins no thread: for tests.support.forks."""

import gc
import os
from pathlib import Path
from tempfile import TemporaryDirectory

gc.disable()  # until all is imported, since nothing of it is garbage
# ruff: noqa: E402
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as in worker.warm_parent

import celery.apps.worker
import celery.bin.celery
import kombu.transport.redis
import uvicorn.lifespan.on
import uvicorn.loops.auto

import mptcore.run  # and torch
import mptlab.cli
import service.__main__
import worker.controller
import worker.main
import worker.warm_parent
from mptcore.protocol.code import core_digest
from service.app import create_app
from service.settings import Settings

__all__ = ["celery", "kombu", "mptcore", "mptlab", "service", "uvicorn", "worker"]

with TemporaryDirectory() as store:
    create_app(Settings(store=Path(store), database_url=None)).openapi()  # forks share it
mptcore.run.load_kernels()  # it takes a warm parent most of a second
core_digest()

gc.collect()
gc.freeze()
gc.enable()
