"""Routes of webhooks."""

from http import HTTPStatus
from typing import Annotated, Any

import httpx
from fastapi import APIRouter, Depends, Path
from pydantic import AnyUrl, ValidationError
from sqlalchemy import Row
from uuid6 import uuid7

from mptcore.specs import Problem
from service.accounts import audit
from service.accounts.permissions import check_has_key, not_found
from service.queue import quota
from service.refusals import ApiError, invalid
from service.settings import Settings
from service.web.dependencies import (
    Canceller,
    DatabaseDep,
    Reader,
    SettingsDep,
    Submitter,
)
from service.web.route import JsonBody, StrictRoute
from service.webhooks import store
from service.webhooks.models import Webhook
from service.webhooks.schemas import MAX_OF_A_URL, MadeWebhook, NewWebhook, WebhookList, WebhookOut
from service.webhooks.sending import NotSent, address_of, is_public, key_of, new_secret

router = APIRouter(prefix="/v1/webhooks", tags=["webhooks"], route_class=StrictRoute)

WebhookId = Annotated[str, Path(max_length=100, description="Id of the webhook.")]
MAX_WEBHOOKS = 10
"""Maximum number of webhooks of a user."""
SECRET_BYTES = range(24, 65)
WEB_PORTS = (80, 443)
FIRST_USER_PORT = 1024
"""Other ports below this one are those of mail, SSH and other services."""


async def _host_warning(
    new: JsonBody[NewWebhook], settings: SettingsDep, user: Submitter
) -> str | None:
    """Check a new webhook, and return why a notification sent now would not arrive, if its host is
    unknown or has addresses that are not allowed. A slow name server holds no thread.
    Raises ApiError."""
    check_has_key(user)
    if problems := [*_url_problems(new.url, settings), *_secret_problems(new.secret)]:
        raise invalid(problems)
    try:
        await address_of(httpx.URL(str(AnyUrl(new.url))), user.id, settings.webhooks_to_private)
    except NotSent as reason:
        return f"{reason}; notifications fail as long as this holds"
    return None


@router.post("", status_code=HTTPStatus.CREATED)
def add_webhook(
    new: JsonBody[NewWebhook],
    warning: Annotated[str | None, Depends(_host_warning)],
    database: DatabaseDep,
    user: Submitter,
) -> MadeWebhook:
    """Add a URL to notify when your experiments end from now on. A host that is unknown or not
    public now is accepted with a warning. Signed-in browsers cannot add webhooks, because these
    would outlive the sign-out."""
    secret = new.secret or new_secret()
    with database.transaction() as session:
        quota.lock(session, user.id)  # concurrent requests must not both add the last one
        if len(store.of_owner(session, user.id)) >= MAX_WEBHOOKS:
            detail = f"you have {MAX_WEBHOOKS} webhooks, the maximum: delete one first"
            raise ApiError(HTTPStatus.CONFLICT, "limit_reached", detail)
        webhook = Webhook(
            id=uuid7().hex,
            owner_id=user.id,
            url=str(AnyUrl(new.url)),  # in a form that all parsers read in the same way
            secret=secret,
            statuses=",".join(dict.fromkeys(new.statuses)),
        )
        session.add(webhook)
        audit.note(session, user, "webhook.added", webhook.id)
        session.flush()
        session.refresh(webhook)
    shown = _out(webhook, None, None).model_dump()
    return MadeWebhook(**shown, secret=secret, warning=warning)


@router.get("")
def list_webhooks(database: DatabaseDep, user: Reader) -> WebhookList:
    """List your webhooks and the state of their deliveries."""
    with database.snapshot() as session:
        found = store.of_owner(session, user.id)
        ids = [one.id for one in found]
        standings, errors = store.standings(session, ids), store.last_errors(session, ids)
    items = [_out(one, standings.get(one.id), errors.get(one.id)) for one in found]
    return WebhookList(items=items)


@router.delete("/{webhook_id}", status_code=HTTPStatus.NO_CONTENT)
def delete_webhook(webhook_id: WebhookId, database: DatabaseDep, user: Canceller) -> None:
    """Delete a webhook. Pending deliveries are dropped. An admin may delete anyone's."""
    with database.transaction() as session:
        found = store.find(session, webhook_id, None if user.is_admin else user.id)
        if found is None:
            raise not_found("webhook")
        store.remove(session, found)
        audit.note(session, user, "webhook.deleted", webhook_id)


def _url_problems(text: str, settings: Settings) -> list[Problem]:
    schemes = ("https", "http") if settings.webhooks_to_private else ("https",)
    try:
        url = AnyUrl(text)
    except ValidationError:
        return [Problem("/url", "not a URL")]
    if len(str(url)) > MAX_OF_A_URL:
        return [Problem("/url", f"a URL of up to {MAX_OF_A_URL} characters as it is sent")]
    if url.scheme not in schemes or not url.host:
        return [Problem("/url", f"a URL with a host that begins with {' or '.join(schemes)}")]
    if url.port not in WEB_PORTS and (url.port or 0) < FIRST_USER_PORT:
        return [Problem("/url", f"a port that is 80, 443 or above 1023, not {url.port}")]
    if url.username or url.password or url.fragment:
        return [Problem("/url", "a URL without a name, a password and a fragment")]
    if not settings.webhooks_to_private and not _may_be_public(url.host.strip("[]")):
        detail = f"{url.host} is not a public address, and only an administrator allows others"
        return [Problem("/url", detail)]
    return []


def _may_be_public(host: str) -> bool:
    """Return whether a host may be public. The addresses of a name are checked at delivery."""
    try:
        return is_public(host)
    except ValueError:
        return True


def _secret_problems(secret: str | None) -> list[Problem]:
    if secret is None:
        return []
    try:
        fits = len(key_of(secret)) in SECRET_BYTES
    except ValueError:
        fits = False
    return [] if fits else [Problem("/secret", "whsec_ and 24 to 64 bytes in base64")]


def _out(webhook: Webhook, standing: Row[*tuple[Any, ...]] | None, error: str | None) -> WebhookOut:
    return WebhookOut.of(
        webhook,
        statuses=webhook.statuses.split(","),
        pending=standing.pending if standing else 0,
        given_up=standing.given_up if standing else 0,
        last_delivered_at=standing.last_delivered_at if standing else None,
        last_error=error,
    )
