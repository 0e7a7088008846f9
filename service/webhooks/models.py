"""Tables of webhooks and their deliveries."""

from sqlalchemy import ForeignKey, String, Text
from sqlalchemy.orm import Mapped, foreign, mapped_column, relationship

from service.accounts.models import User
from service.db.engine import Base, now, partial_index


class Webhook(Base):
    """An address that is notified when experiments of its owner have ended."""

    __tablename__ = "webhooks"

    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    owner_id: Mapped[int] = mapped_column(ForeignKey(User.id), index=True)
    url: Mapped[str] = mapped_column(String(2000))
    secret: Mapped[str] = mapped_column(String(100))
    """The secret that signs deliveries, stored as it was shown."""
    statuses: Mapped[str] = mapped_column(String(40))
    """Terminal statuses to report, separated by commas."""
    created_at: Mapped[float] = mapped_column(default=now())


class Delivery(Base):
    """A message to be sent when an experiment has ended. The transaction that ends the experiment
    writes it. There is no foreign key to the webhook: one that is deleted must not stop that
    end."""

    __tablename__ = "deliveries"
    __table_args__ = (
        partial_index(
            "ix_deliveries_due", ["webhook_id", "next_at", "experiment_id"], "next_at IS NOT NULL"
        ),
    )

    webhook_id: Mapped[str] = mapped_column(String(32), primary_key=True)
    experiment_id: Mapped[str] = mapped_column(
        ForeignKey("experiments.id"), primary_key=True, index=True
    )
    webhook: Mapped[Webhook] = relationship(
        lazy="raise", primaryjoin=lambda: foreign(Delivery.webhook_id) == Webhook.id
    )
    status: Mapped[str] = mapped_column(String(16))
    ended_at: Mapped[float]
    attempts: Mapped[int] = mapped_column(default=0)
    next_at: Mapped[float | None]
    """Time of the next try; null after success or after giving up."""
    delivered_at: Mapped[float | None]
    given_up_at: Mapped[float | None]
    last_error: Mapped[str | None] = mapped_column(Text)
