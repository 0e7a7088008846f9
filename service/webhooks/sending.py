"""Send webhook deliveries: signed, to a checked address, within a few seconds.

The format is that of https://www.standardwebhooks.com: headers webhook-id, webhook-timestamp and
webhook-signature."""

import asyncio
import base64
import json
import secrets
import ssl
from datetime import UTC, datetime
from functools import cache
from ipaddress import IPv4Address, IPv6Address, ip_address

import httpx
from standardwebhooks import Webhook as Signer

from service.db.engine import moment
from service.webhooks.models import Delivery
from service.webhooks.resolving import addresses_of

SECRET_PREFIX = "whsec_"
TRY_S = 15.0
"""Time limit of a try: name resolution, connection, sending, and the head of the answer."""
UNKNOWN_HOST = "the host of the URL is unknown"
NO_PUBLIC_HOST = "the host of the URL is unknown, or has an address that is not public"
NO_TLS = "no TLS connection was made: the certificate must be valid for the host of the URL"
NO_CONNECTION = "no connection was made to the host of the URL"
NO_ANSWER = "the connection ended without an answer in HTTP"


class NotSent(Exception):
    """Reason why a try failed, as a sentence for the owner. It contains no address and does not
    reveal whether a name exists that only this network knows."""


def new_secret() -> str:
    return SECRET_PREFIX + base64.b64encode(secrets.token_bytes(32)).decode()


def key_of(secret: str) -> bytes:
    """Return the signing key. Raises ValueError."""
    if not secret.startswith(SECRET_PREFIX):
        raise ValueError
    return base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)


def message_of(delivery: Delivery) -> tuple[str, str]:
    """Return the id of a message, the same at every try, and its body."""
    document = {
        "type": f"experiment.{delivery.status}",
        "timestamp": moment(delivery.ended_at).isoformat(),
        "data": {
            "experiment_id": delivery.experiment_id,
            "status": delivery.status,
            "url": f"/v1/experiments/{delivery.experiment_id}",
        },
    }
    message_id = f"msg_{delivery.webhook_id}_{delivery.experiment_id}"
    return message_id, json.dumps(document, separators=(",", ":"))


def is_public(address: str) -> bool:
    """Return whether an address is public: not of this machine or a local network."""
    parsed: IPv4Address | IPv6Address = ip_address(address.partition("%")[0])
    if isinstance(parsed, IPv6Address) and parsed.ipv4_mapped is not None:
        parsed = parsed.ipv4_mapped
    return parsed.is_global and not parsed.is_multicast


async def send(delivery: Delivery, to_private: bool) -> None:
    """Try to send a delivery. Raises NotSent, whose cause says more to an administrator."""
    try:
        async with asyncio.timeout(TRY_S):
            await _send(delivery, to_private)
    except TimeoutError as error:
        raise NotSent(f"no answer within {TRY_S:g} s") from error


async def _send(delivery: Delivery, to_private: bool) -> None:
    url = httpx.URL(delivery.webhook.url)
    address = await address_of(url, delivery.webhook.owner_id, to_private)
    message_id, body = message_of(delivery)
    at = datetime.now(UTC).replace(microsecond=0)
    headers = {
        "Host": url.netloc.decode(),
        "Content-Type": "application/json",
        "User-Agent": "mptlab",
        "webhook-id": message_id,
        "webhook-timestamp": str(int(at.timestamp())),
        "webhook-signature": Signer(delivery.webhook.secret).sign(message_id, at, body),
    }
    # Send to the checked address, even if the name now resolves to another one. Only the status
    # of the answer is read, and redirects and proxies are not used.
    request = httpx.Request(
        "POST",
        url.copy_with(host=address),
        headers=headers,
        content=body,
        extensions={"sni_hostname": url.raw_host.decode(), "timeout": _TIMEOUT},
    )
    try:
        async with httpx.AsyncClient(verify=_tls(), trust_env=False) as client:
            answer = await client.send(request, stream=True)
            await answer.aclose()
    except (httpx.HTTPError, ssl.SSLError, OSError) as error:
        raise NotSent(_sentence(error)) from error
    if not answer.is_success:
        raise NotSent(f"the answer was {answer.status_code}; it must be 2xx")


_TIMEOUT = httpx.Timeout(TRY_S).as_dict()


@cache
def _tls() -> ssl.SSLContext:
    """Return a TLS context with the machine's certificates and those in SSL_CERT_FILE."""
    return ssl.create_default_context()


def _sentence(error: Exception) -> str:
    """Return the sentence for an error of a connection, whose own text may name addresses."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLError):
            return NO_TLS
        cause = cause.__cause__ or cause.__context__
    if isinstance(error, httpx.TimeoutException):
        return f"no answer within {TRY_S:g} s"
    return NO_CONNECTION if isinstance(error, httpx.ConnectError | OSError) else NO_ANSWER


async def address_of(url: httpx.URL, owner_id: int, to_private: bool) -> str:
    """Return an address of the host, if all its addresses are allowed. Raises NotSent."""
    port = url.port or (443 if url.scheme == "https" else 80)
    unknown = UNKNOWN_HOST if to_private else NO_PUBLIC_HOST
    try:
        addresses = await addresses_of(url.raw_host.decode(), port, owner_id)
    except (OSError, UnicodeError) as error:  # a TimeoutError is an OSError
        raise NotSent(unknown) from error
    if not to_private and not all(map(is_public, addresses)):
        raise NotSent(unknown) from ValueError(f"not public: {', '.join(addresses)}")
    return addresses[0]
