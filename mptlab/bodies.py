"""Files as what a request sends."""

import asyncio
from collections.abc import AsyncIterator
from typing import BinaryIO

CHUNK_BYTES = 2**20


async def async_content(file: BinaryIO) -> AsyncIterator[bytes]:
    """The bytes of a file, read while nothing else waits for that."""
    while chunk := await asyncio.to_thread(file.read, CHUNK_BYTES):
        yield chunk
