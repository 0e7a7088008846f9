"""Sending what is to be told: signed, to an address that was looked at, within a few seconds.

The form is that of https://www.standardwebhooks.com: headers webhook-id, webhook-timestamp and
webhook-signature."""

import asyncio
import base64
import json
import secrets
import socket
import ssl
from collections.abc import Iterable
from datetime import UTC, datetime
from functools import cache
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address

import httpx
from standardwebhooks import Webhook as Signer

from service.experiments.schemas import moment
from service.webhooks.models import Delivery

SECRET_PREFIX = "whsec_"
TRY_S = 15.0
"""For all of a try: finding the address, connecting, sending, and the head of the answer."""
NAT64 = IPv6Network("64:ff9b::/96")
LOCAL = [
    IPv6Network(one)
    for one in ("64:ff9b:1::/48", "fec0::/10", "::/96", "::ffff:0:0:0/96", "5f00::/16")
]
"""What leads to a network of one's own, though it is not called private."""


class NotSent(Exception):
    """Why a try failed, in a sentence for the owner."""


def new_secret() -> str:
    return SECRET_PREFIX + base64.b64encode(secrets.token_bytes(32)).decode()


def key_of(secret: str) -> bytes:
    """The bytes that sign. Raises ValueError."""
    if not secret.startswith(SECRET_PREFIX):
        raise ValueError
    return base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)


def message_of(delivery: Delivery) -> tuple[str, str]:
    """Its id, the same at every try, and its body."""
    ended_at = moment(delivery.ended_at)
    assert ended_at is not None
    document = {
        "type": f"experiment.{delivery.status}",
        "timestamp": ended_at.isoformat(),
        "data": {
            "experiment_id": delivery.experiment_id,
            "status": delivery.status,
            "url": f"/v1/experiments/{delivery.experiment_id}",
        },
    }
    message_id = f"msg_{delivery.webhook_id}_{delivery.experiment_id}"
    return message_id, json.dumps(document, separators=(",", ":"))


def is_public(address: str) -> bool:
    """Whether an address is anyone's to reach, and not of this machine or network."""
    parsed: IPv4Address | IPv6Address = ip_address(address.partition("%")[0])
    if isinstance(parsed, IPv6Address):
        if any(parsed in one for one in LOCAL):
            return False
        within = parsed.ipv4_mapped or parsed.sixtofour
        if parsed in NAT64:
            within = IPv4Address(int(parsed) & 0xFFFFFFFF)
        if within is not None:
            return is_public(str(within))
        if parsed.teredo is not None:
            return False
    return parsed.is_global and not parsed.is_multicast


async def send(delivery: Delivery, to_private: bool) -> None:
    """Try to tell. Raises NotSent."""
    try:
        async with asyncio.timeout(TRY_S):
            await _send(delivery, to_private)
    except TimeoutError:
        raise NotSent(f"no answer within {TRY_S:g} s") from None


async def _send(delivery: Delivery, to_private: bool) -> None:
    url = httpx.URL(delivery.webhook.url)
    address = await _address(url, to_private)
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
    # To the very address that was looked at, whatever the name leads to by now; of the answer
    # nothing but its status is read, no redirect is followed, and no proxy of ours helps.
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
        raise NotSent(str(error) or type(error).__name__) from None
    if not answer.is_success:
        raise NotSent(f"the answer was {answer.status_code}; it must be 2xx")


_TIMEOUT = httpx.Timeout(TRY_S).as_dict()


@cache
def _tls() -> ssl.SSLContext:
    """With the machine's own certificates, and those that SSL_CERT_FILE names."""
    return ssl.create_default_context()


async def _address(url: httpx.URL, to_private: bool) -> str:
    """One that the name leads to, if all of them may be told. Raises NotSent."""
    port = url.port or (443 if url.scheme == "https" else 80)
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(url.raw_host.decode(), port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise NotSent(f"no address is known of {url.host}") from None
    addresses = [str(one[4][0]) for one in found]
    refused = [one for one in addresses if not is_public(one)]
    if refused and not to_private:
        raise NotSent(f"{url.host} leads to {_listed(refused)}, which is not a public address")
    return addresses[0]


def _listed(addresses: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(addresses))
