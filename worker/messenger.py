"""Send webhooks about ended experiments. It runs beside the controller, so that an address that
does not answer delays no recovery."""

import asyncio
import logging
import threading
import time
from collections.abc import Sequence

from service.db.engine import Database
from service.db.errors import TRANSIENT_DB_ERRORS
from service.settings import Settings
from service.webhooks import store
from service.webhooks.models import Delivery
from service.webhooks.sending import NotSent, send

log = logging.getLogger(__name__)

LOOK_S = 2.0
PAUSE_S = 0.05
"""Pause between two polls if the first found something."""
FORGET_S = 3600.0


class Messenger:
    """Sends due deliveries. Any number of messengers may run, because each delivery is claimed by
    only one of them."""

    def __init__(self, database: Database, settings: Settings):
        self.database = database
        self.settings = settings
        self._forget_due = time.monotonic()
        self._under_way: dict[str, asyncio.Task[None]] = {}

    def run(self, stopping: threading.Event) -> None:
        asyncio.run(self._run(stopping))

    def tell(self) -> int:
        """Send the due deliveries, one for each webhook, and return their number."""
        return asyncio.run(self._tell_due())

    async def _run(self, stopping: threading.Event) -> None:
        """Send until stopping. Each webhook has its own thread, so that none waits for another's
        address."""
        while not stopping.is_set():
            begun = 0
            try:
                begun = await self._begin()
                await asyncio.to_thread(self._forget)
            except TRANSIENT_DB_ERRORS as error:
                log.warning("the database is unreachable: %s", error)
            await asyncio.sleep(PAUSE_S if begun else LOOK_S)

    async def _tell_due(self) -> int:
        begun = await self._begin()
        await asyncio.gather(*self._under_way.values())
        return begun

    async def _begin(self) -> int:
        """Start to send the due deliveries, one for each webhook that has none in progress."""
        claimed = await asyncio.to_thread(self._claimed)
        for one in claimed:
            self._under_way[one.webhook_id] = asyncio.create_task(self._tell(one))
        return len(claimed)

    def _claimed(self) -> Sequence[Delivery]:
        busy = [*self._under_way]
        with self.database.snapshot() as session:
            if not store.is_due(session, busy):
                return ()
        with self.database.transaction() as session:
            return store.claim(session, busy)

    async def _tell(self, one: Delivery) -> None:
        try:
            error = await self._try(one)
            await asyncio.to_thread(self._settle, one, error)
        except TRANSIENT_DB_ERRORS as error:  # it is sent once more
            log.warning("the database is unreachable: %s", error)
        finally:
            del self._under_way[one.webhook_id]

    def _settle(self, one: Delivery, error: str | None) -> None:
        with self.database.transaction() as session:
            store.settle(session, one, error)

    async def _try(self, delivery: Delivery) -> str | None:
        try:
            await send(delivery, self.settings.webhooks_to_private)
        except NotSent as error:
            extra = {"webhook_id": delivery.webhook_id, "cause": repr(error.__cause__)}
            log.info("a webhook delivery failed: %s", error, extra=extra)
            return str(error)
        except Exception as error:  # it must not stop the other deliveries
            log.exception("a webhook delivery failed", extra={"webhook_id": delivery.webhook_id})
            return f"an error of the service itself: {type(error).__name__}"
        return None

    def _forget(self) -> None:
        if time.monotonic() >= self._forget_due:
            self._forget_due = time.monotonic() + FORGET_S
            with self.database.transaction() as session:
                store.forget(session)
