"""Allowed destinations of webhooks: exactly the address that was checked."""

import asyncio
import socket
import ssl
import subprocess
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from standardwebhooks import Webhook as Signer

from service.webhooks import resolving, sending
from service.webhooks.models import Delivery, Webhook
from service.webhooks.sending import (
    NO_ANSWER,
    NO_CONNECTION,
    NO_PUBLIC_HOST,
    NO_TLS,
    UNKNOWN_HOST,
    NotSent,
    is_public,
    key_of,
    new_secret,
    send,
)
from tests.support.receivers import receiving

PRIVATE = [
    "127.0.0.1", "127.8.8.8", "0.0.0.0", "10.1.2.3", "172.16.0.1", "172.31.255.255", "192.168.0.1",
    "169.254.169.254", "100.64.0.1", "192.0.0.1", "198.18.0.1", "224.0.0.1", "240.0.0.1",
    "255.255.255.255", "::", "::1", "fe80::1", "fe80::1%eth0", "fc00::1", "fd12::1", "ff02::1",
    "::ffff:127.0.0.1", "::ffff:10.0.0.1", "2001:0:4136:e378:8000:63bf:3fff:fdd2",
]  # fmt: skip
PUBLIC = ["8.8.8.8", "172.32.0.1", "100.128.0.1", "2606:4700::1111", "::ffff:8.8.8.8"]


def test_private_and_public_addresses() -> None:
    assert [one for one in PRIVATE if is_public(one)] == []
    assert [one for one in PUBLIC if not is_public(one)] == []


def test_deliveries_are_signed_as_published() -> None:
    """The example of the scheme's own libraries."""
    at = datetime.fromtimestamp(1614265330, UTC)
    signed = Signer("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").sign(
        "msg_p5jXN8AQM9LWM0D4loKWxJek", at, '{"test": 2432232314}'
    )
    assert signed == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
    assert len(key_of(new_secret())) == 32
    assert new_secret() != new_secret()


def delivery(url: str) -> Delivery:
    hook = Webhook(id="w", owner_id=1, url=url, secret=new_secret(), statuses="failed")
    return Delivery(webhook=hook, webhook_id="w", experiment_id="e", status="failed", ended_at=0.0)


def told(url: str, to_private: bool = True) -> str | None:
    """Return the reason why it was not sent; None if it was sent."""
    try:
        asyncio.run(send(delivery(url), to_private))
    except NotSent as error:
        return str(error)
    return None


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """Return the addresses of names. Each name may be resolved once, because a second answer could
    differ."""
    known: dict[str, list[str]] = {}
    real = socket.getaddrinfo

    def look_up(host: Any, port: Any, *rest: Any, **how: Any) -> Any:
        name = host.decode() if isinstance(host, bytes) else host
        if name.endswith(".test"):
            found = known.pop(name)
            return [found_one for one in found for found_one in real(one, port, *rest, **how)]
        return real(host, port, *rest, **how)

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    return known


def test_deliveries_go_to_the_checked_address(names: dict[str, list[str]]) -> None:
    names["hook.test"] = ["127.0.0.1"]
    with receiving() as receiver:
        assert told(f"http://hook.test:{receiver.port}/") is None
    assert receiver.told[0][0]["Host"] == f"hook.test:{receiver.port}"
    assert names == {}


@pytest.mark.parametrize("addresses", [["127.0.0.1"], ["8.8.8.8", "127.0.0.1"], ["::1"]])
def test_deliveries_to_private_addresses_are_refused(
    names: dict[str, list[str]], addresses: list[str]
) -> None:
    """Check also a name with several addresses of which one is private."""
    names["hook.test"] = addresses
    with receiving() as receiver:
        refusal = told(f"http://hook.test:{receiver.port}/", to_private=False)
        assert receiver.told == []
        # An unknown name gives the same message, so internal names are not revealed.
        assert refusal == told("http://nothing.invalid/", to_private=False) == NO_PUBLIC_HOST


@pytest.mark.parametrize("host", ["a..b", "x" * 300])
def test_an_invalid_host_name(host: str) -> None:
    assert told(f"https://{host}/") == UNKNOWN_HOST


def test_redirects_and_proxies_are_not_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    with receiving() as receiver, receiving() as proxy:
        monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{proxy.port}")
        monkeypatch.setenv("ALL_PROXY", f"http://127.0.0.1:{proxy.port}")
        receiver.statuses = [307, 200]
        assert told(receiver.url) == "the answer was 307; it must be 2xx"
    assert len(receiver.told) == 1
    assert proxy.told == []


def test_a_receiver_that_does_not_answer(
    names: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert told("http://nothing.invalid/") == UNKNOWN_HOST
    assert told("http://127.0.0.1:9/") == NO_CONNECTION
    monkeypatch.setattr(sending, "TRY_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        assert told(f"http://127.0.0.1:{port}/") == "no answer within 0.5 s"


def test_an_answer_that_is_not_http() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(b"220 10.0.0.7 mail of the inner network\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        assert told(f"http://127.0.0.1:{server.getsockname()[1]}/") == NO_ANSWER
        thread.join()


def test_a_name_that_is_not_found_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolving, "LOOK_UP_S", 0.2)
    over = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: over.wait())
    assert told("https://tarpit.test/") == UNKNOWN_HOST
    over.set()


def test_an_answer_that_trickles_or_floods(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its body is not read, so it takes no longer than a try may and needs no memory."""
    monkeypatch.setattr(sending, "TRY_S", 1.0)
    heads = {"no answer within 1 s": b"X", None: b"HTTP/1.1 200 OK\r\n\r\nX"}
    for expected, head in heads.items():
        with socket.create_server(("127.0.0.1", 0)) as server:
            over = threading.Event()

            def drip(server: socket.socket, head: bytes, over: threading.Event) -> None:
                connection, _ = server.accept()
                with connection:
                    connection.sendall(head)
                    while not over.wait(0.05):
                        try:
                            connection.sendall(b"X")
                        except OSError:
                            return

            thread = threading.Thread(target=drip, args=(server, head, over))
            thread.start()
            assert told(f"http://127.0.0.1:{server.getsockname()[1]}/") == expected
            over.set()
            thread.join()


def test_tls_verifies_the_host_name(
    names: dict[str, list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
         "-nodes", "-days", "2", "-subj", "/CN=hook.test",
         "-addext", "subjectAltName=DNS:hook.test",
         "-keyout", str(key), "-out", str(certificate)],
        check=True, capture_output=True,
    )  # fmt: skip
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate, key)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    sending._tls.cache_clear()
    try:
        with receiving(tls) as receiver:
            names.update({"hook.test": ["127.0.0.1"], "other.test": ["127.0.0.1"]})
            assert told(f"https://hook.test:{receiver.port}/") is None
            refusal = told(f"https://other.test:{receiver.port}/")
        assert refusal == NO_TLS
        assert len(receiver.told) == 1
    finally:
        sending._tls.cache_clear()
