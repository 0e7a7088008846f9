"""Bodies and answers about webhooks."""

from typing import Annotated

from pydantic import Field

from service.schemas import Moment, RequestModel, ResponseModel
from service.vocabulary import Ending

MAX_OF_A_URL = 2000


class NewWebhook(RequestModel):
    """A URL to notify when your experiments end."""

    url: Annotated[str, Field(max_length=MAX_OF_A_URL)]
    """URL for POST requests: https and public, unless the administrator allows others. Its port is
    80, 443 or above 1023."""
    secret: Annotated[str, Field(max_length=100)] | None = None
    """Secret that signs requests: `whsec_` and 24 to 64 bytes in base64. null: a new one."""
    statuses: Annotated[
        list[Annotated[Ending, Field(strict=False)]], Field(min_length=1, max_length=3)
    ] = Field([*Ending])
    """Final statuses to notify about."""


class WebhookOut(ResponseModel):
    """A webhook and the state of its notifications."""

    id: str
    """Id of the webhook."""
    url: str
    """URL for POST requests."""
    statuses: list[Ending]
    """Final statuses to notify about."""
    created_at: Moment
    """Time of creation."""
    pending: int
    """Number of notifications to send."""
    given_up: int
    """Number of notifications in the last week that could not be delivered in 28 hours."""
    last_delivered_at: Moment | None
    """Time of the latest delivery. null: none yet."""
    last_error: str | None
    """Latest error of a notification that is pending or given up. null: none."""


class MadeWebhook(WebhookOut):
    secret: str
    """Secret that signs requests. Only this answer has it."""
    warning: str | None
    """Reason why a notification sent now would not arrive. null: the host has allowed addresses."""


class WebhookList(ResponseModel):
    items: list[WebhookOut]
    """Webhooks."""
