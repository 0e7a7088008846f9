"""A real OpenID Connect provider, npm's oidc-provider, in a process of its own, and a person who
signs in at its pages."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urljoin, urlsplit

import httpx
import pytest

from mptlab import serve
from service.settings import Settings

ROOT = Path(__file__).parents[2]
CLIENT_ID, SECRET = "lab", "secret of the lab"


class RealProvider:
    """The provider on a port of its own."""

    def __init__(self) -> None:
        if shutil.which("node") is None or not (ROOT / "node_modules" / "oidc-provider").exists():
            pytest.skip("oidc-provider is not installed: apt-get install nodejs npm; npm ci")
        self.port = serve.free_port()
        self.issuer = f"http://127.0.0.1:{self.port}"
        self._accounts: dict[str, Any] = {}

    def start(self, redirect_uri: str = "http://testserver/sign-in") -> None:
        """Start it. It sends browsers back to `redirect_uri`."""
        program = Path(__file__).with_suffix(".mjs")
        self._process = subprocess.Popen(
            ["node", str(program), str(self.port), redirect_uri],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._wait()
        self._tell(accounts=self._accounts)

    def stop(self) -> None:
        self._process.kill()
        self._process.communicate()

    def add(self, login: str, groups: list[str] | None = None, **claims: Any) -> None:
        """Add or change the account of a person."""
        named = {"preferred_username": login, **claims}
        self._accounts[login] = named if groups is None else {**named, "groups": groups}
        self._tell(accounts=self._accounts)

    def forge(self, **claims: Any) -> None:
        """Replace claims of the next ID tokens, where None leaves one out and "raw:NaN" stands for
        NaN; or their key id (`kid`), signature (`alg`), or the provider's key by a stranger's
        (`signed_by`); or parts of `discovery`, `userinfo` and `token`; or add to its keys
        (`more_keys`), or answer later at some paths (`after_ms`)."""
        self._tell(forge=claims or None)

    def rotate(self) -> None:
        """Sign with another key from now on, and forget the earlier one."""
        self._tell(rotate=True)

    def key_requests(self) -> int:
        """Return how often its keys were requested."""
        return self._tell()

    def _tell(self, **what: Any) -> int:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(what) + "\n")
        self._process.stdin.flush()
        return self._wait()

    def _wait(self) -> int:
        assert self._process.stdout is not None
        return int(self._process.stdout.readline())


def with_provider(settings: Settings, provider: RealProvider, **others: Any) -> Settings:
    """Return settings of a service that admits every account."""
    oidc = {
        "oidc_issuer": provider.issuer,
        "oidc_client_id": CLIENT_ID,
        "oidc_client_secret": SECRET,
        "oidc_new_users": "admit",
    }
    return Settings(**{**settings.model_dump(), **oidc, **others})


class Person:
    """A browser at the provider's pages."""

    def __init__(self) -> None:
        self._http = httpx.Client(trust_env=False)
        self.passwords = 0
        """Number of times that the provider asked for the password."""

    def sign_in(self, url: str, login: str) -> dict[str, str]:
        """Sign in at an address of the provider, give consent, and return the parameters with which
        the provider sends the browser back."""
        provider = urlsplit(url).netloc
        for _ in range(20):
            if urlsplit(url).netloc != provider:
                return dict(parse_qsl(urlsplit(url).query))
            if "/interaction/" in url:
                page = self._http.get(url).text
                prompt = "login" if 'name="login"' in page else "consent"
                self.passwords += prompt == "login"
                form = {"prompt": prompt, "login": login, "password": "of a test"}
                answer = self._http.post(url, data=form)
            else:
                answer = self._http.get(url)
            assert answer.is_redirect, answer.text
            url = urljoin(url, answer.headers["Location"])
        raise AssertionError(f"the provider does not send the browser back from {url}")
