"""Store webhooks and their pending deliveries. No function commits."""

from collections.abc import Collection, Sequence
from typing import Any

from sqlalchemy import Row, Select, String, delete, func, insert, literal, select, tuple_, update
from sqlalchemy.orm import Session, joinedload

from service.accounts.models import User
from service.db.engine import among, now
from service.experiments.models import Experiment
from service.webhooks.models import Delivery, Webhook

CLAIMED_S = 60.0
"""Duration of a claim, longer than a try. If a process dies after claiming a delivery, others try
it after this time."""
RETRIES_S = (5.0, 300.0, 1800.0, 7200.0, 18_000.0, 36_000.0, 36_000.0)
"""Delays between tries. After the last one a delivery is given up, some 28 hours after the
first."""
KEPT_S = 7 * 86_400.0
"""Time for which finished deliveries are kept."""
TOGETHER = 50


def announce(session: Session, experiment_ids: Collection[str], status: str) -> None:
    """Create deliveries for experiments that have ended, to the webhooks of their owners."""
    wanted = (
        select(
            Webhook.id,
            Experiment.id,
            literal(status, String(16)),
            now(),
            literal(0),
            now(),
        )
        .join(Experiment, Experiment.owner_id == Webhook.owner_id)
        .join(User, User.id == Webhook.owner_id)
        .where(among(Experiment.id, experiment_ids), Webhook.statuses.contains(status))
        .where(User.disabled_at.is_(None))
    )
    columns = ["webhook_id", "experiment_id", "status", "ended_at", "attempts", "next_at"]
    session.execute(insert(Delivery).from_select(columns, wanted))


def is_due(session: Session, busy: Collection[str] = ()) -> bool:
    """Return whether something is due for a webhook that is not busy."""
    return session.execute(_due(busy).limit(1)).first() is not None


def _due(busy: Collection[str]) -> Select[Any]:
    """Return a query of the webhooks that are not busy, each with its first due delivery. Webhooks
    of disabled users are left out. An index finds the delivery among any number."""
    first = (
        select(Delivery.experiment_id)
        .where(Delivery.webhook_id == Webhook.id, Delivery.next_at <= now())
        .order_by(Delivery.next_at, Delivery.experiment_id)
        .limit(1)
        .scalar_subquery()
    )
    served = (
        select(Webhook.id.label("webhook_id"), first.label("experiment_id"))
        .join(User, User.id == Webhook.owner_id)
        .where(Webhook.id.not_in(busy), User.disabled_at.is_(None))
        .subquery()
    )
    return select(served).where(served.c.experiment_id.is_not(None))


def claim(session: Session, busy: Collection[str] = ()) -> Sequence[Delivery]:
    """Claim the due deliveries, one for each webhook that is not busy, so that a webhook that does
    not answer delays no other. The claim lasts CLAIMED_S."""
    due = session.execute(_due(busy).order_by(func.random()).limit(TOGETHER)).all()
    found = session.scalars(
        select(Delivery)
        .where(tuple_(Delivery.webhook_id, Delivery.experiment_id).in_([tuple(one) for one in due]))
        .where(Delivery.next_at <= now())
        .options(joinedload(Delivery.webhook, innerjoin=True))
        .with_for_update(of=Delivery, skip_locked=True)
    ).all()
    clock = session.scalar(select(now())) or 0.0
    for one in found:
        one.attempts += 1
        one.next_at = clock + CLAIMED_S
    return found


def settle(session: Session, claimed: Delivery, error: str | None) -> None:
    """Record the result of a claimed try: an error or success. If the claim has expired and passed
    on, the other result counts."""
    columns: dict[str, Any] = {"last_error": error}
    if error is None:
        columns |= {"delivered_at": now(), "next_at": None}
    elif claimed.attempts > len(RETRIES_S):
        columns |= {"given_up_at": now(), "next_at": None}
    else:
        columns |= {"next_at": now() + RETRIES_S[claimed.attempts - 1]}
    session.execute(
        update(Delivery)
        .where(
            Delivery.webhook_id == claimed.webhook_id,
            Delivery.experiment_id == claimed.experiment_id,
            Delivery.attempts == claimed.attempts,
            Delivery.delivered_at.is_(None),
        )
        .values(**columns)
        .execution_options(synchronize_session=False)
    )


def forget(session: Session) -> None:
    """Delete deliveries that finished some time ago, and those without a webhook or user."""
    served = select(Webhook.id).join(User, User.id == Webhook.owner_id)
    served = served.where(User.disabled_at.is_(None))
    session.execute(delete(Delivery).where(Delivery.webhook_id.not_in(served)))
    over = func.coalesce(Delivery.delivered_at, Delivery.given_up_at)
    session.execute(delete(Delivery).where(Delivery.next_at.is_(None), over < now() - KEPT_S))


def of_owner(session: Session, owner_id: int) -> Sequence[Webhook]:
    """Return a user's webhooks, oldest first."""
    query = select(Webhook).where(Webhook.owner_id == owner_id)
    return session.scalars(query.order_by(Webhook.id)).all()


def find(session: Session, webhook_id: str, owner_id: int | None) -> Webhook | None:
    """Return the webhook of that id, of that owner or of anyone."""
    query = select(Webhook).where(Webhook.id == webhook_id)
    if owner_id is not None:
        query = query.where(Webhook.owner_id == owner_id)
    return session.scalar(query)


def remove(session: Session, webhook: Webhook) -> None:
    """Delete a webhook with its pending deliveries."""
    session.execute(delete(Delivery).where(Delivery.webhook_id == webhook.id))
    session.delete(webhook)


def standings(session: Session, webhook_ids: Collection[str]) -> dict[str, Row[*tuple[Any, ...]]]:
    """Return for each of these webhooks the numbers of pending and given-up deliveries, and the
    time of the last success."""
    query = (
        select(
            Delivery.webhook_id,
            func.count(Delivery.next_at).label("pending"),
            func.count(Delivery.given_up_at).label("given_up"),
            func.max(Delivery.delivered_at).label("last_delivered_at"),
        )
        .where(Delivery.webhook_id.in_(webhook_ids))
        .group_by(Delivery.webhook_id)
    )
    return {row.webhook_id: row for row in session.execute(query)}


def last_errors(session: Session, webhook_ids: Collection[str]) -> dict[str, str]:
    """Return the error of the last failed delivery of each of these webhooks."""
    found = {}
    for webhook_id in webhook_ids:
        failed = select(Delivery.last_error).where(
            Delivery.webhook_id == webhook_id, Delivery.last_error.is_not(None)
        )
        latest = failed.order_by(Delivery.ended_at.desc(), Delivery.experiment_id.desc())
        if error := session.scalar(latest.limit(1)):
            found[webhook_id] = error
    return found
