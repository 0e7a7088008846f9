"""Telling by webhooks that experiments have ended. Beside the reaper: an address that does not
answer must not keep runs from being put back."""

import asyncio
import logging
import threading
import time
from collections.abc import Sequence

from service.database import AWAY, Database
from service.settings import Settings
from service.webhooks import store
from service.webhooks.models import Delivery
from service.webhooks.sending import NotSent, send

log = logging.getLogger(__name__)

LOOK_S = 1.0
FORGET_S = 3600.0


class Messenger:
    """Any number may run: what one has claimed, no other sends."""

    def __init__(self, database: Database, settings: Settings):
        self.database = database
        self.settings = settings
        self._forget_due = time.monotonic()

    def run(self, stopping: threading.Event) -> None:
        while not stopping.wait(LOOK_S):
            try:
                while self.tell() and not stopping.is_set():
                    pass
                self._forget()
            except AWAY as error:
                log.warning("the database is away: %s", error)

    def tell(self) -> int:
        """Try what is due, one for each webhook, and say how many that were."""
        with self.database.snapshot() as session:
            if not store.is_due(session):
                return 0
        with self.database.transaction() as session:
            claimed = store.claim(session)
        errors = asyncio.run(self._sent(claimed))
        with self.database.transaction() as session:
            for one, error in zip(claimed, errors, strict=True):
                store.settle(session, one, error)
        return len(claimed)

    async def _sent(self, claimed: Sequence[Delivery]) -> list[str | None]:
        """Of each the error, if there was one."""
        return await asyncio.gather(*(self._try(one) for one in claimed))

    async def _try(self, delivery: Delivery) -> str | None:
        try:
            await send(delivery, self.settings.webhooks_to_private)
        except NotSent as error:
            log.info("a webhook was not told: %s", error, extra={"webhook_id": delivery.webhook_id})
            return str(error)
        except Exception as error:  # of one address: it must end neither this process nor the rest
            log.exception("a webhook was not told", extra={"webhook_id": delivery.webhook_id})
            return f"an error of the service itself: {type(error).__name__}"
        return None

    def _forget(self) -> None:
        if time.monotonic() >= self._forget_due:
            self._forget_due = time.monotonic() + FORGET_S
            with self.database.transaction() as session:
                store.forget(session)
