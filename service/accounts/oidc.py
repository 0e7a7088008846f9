"""The OpenID Connect provider: its addresses and keys, the authorization code flow with PKCE, and
the claims about an account."""

import asyncio
import logging
import math
import re
import ssl
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import cache
from typing import Any, NamedTuple

import httpx2
from authlib.common.security import generate_token
from authlib.integrations.base_client import OAuthError
from authlib.integrations.httpx_client import AsyncOAuth2Client
from authlib.oidc.core import CodeIDToken
from joserfc import jwt
from joserfc.errors import ExpiredTokenError, InvalidKeyIdError, JoseError
from joserfc.jwk import JWKRegistry, Key, KeySet

from service.accounts.users import KeyRefused
from service.places import Places
from service.refusals import ApiError, unavailable
from service.settings import Settings, is_provider_url

log = logging.getLogger(__name__)

ROUND_LASTS_S = 600
"""Maximum time between the begin of a sign-in and the return from the provider."""
FRESH_S = 600
"""Time after the provider has asked for a password, in which a browser may create keys."""
MAX_AGE_S = 30 * 86_400
"""Time for which the provider need not ask for a password again. Many providers say when they did
only if a sign-in names such a time."""
LEEWAY_S = 60
"""Allowed difference between the clocks of the provider and of this machine."""
REQUEST_S, ROUND_S = 5.0, 12.0
"""Maximum seconds of a request to the provider, and of all requests of one step of a sign-in."""
MAX_AT_ONCE, MAX_OF_ADDRESS = 16, 4
"""Maximum number of steps of sign-ins that use the provider at the same time, and of those from one
address."""
METADATA_S, KEYS_S = 60.0, 3600.0
"""Time for which the provider's addresses and its keys are kept."""
RETRY_KEYS_S = 30.0
"""Minimum interval between two requests of the keys because of an unknown key id."""
ALGORITHMS = [f"{kind}{bits}" for kind in ("RS", "PS", "ES") for bits in (256, 384, 512)]
ALGORITHMS += ["EdDSA", "Ed25519"]
"""Signatures by a key that only the provider has."""
ENDPOINTS = ("authorization_endpoint", "token_endpoint", "jwks_uri", "userinfo_endpoint")

MALFORMED = (ValueError, LookupError, TypeError, AttributeError, RecursionError, OverflowError)
"""Errors of documents of another form than the standard's."""

NOT_BEGUN = (
    "this sign-in was not begun in this browser, or more than ten minutes ago, or another one was "
    "begun since: sign in again"
)
REFUSED = "the provider refused this sign-in ({}): sign in again, or ask an admin"
WRONG_TOKEN = "the provider's answer is not valid ({}): sign in again, or ask an admin"


class Round(NamedTuple):
    """A sign-in that a browser has begun. The browser's signed cookie holds it."""

    state: str
    nonce: str
    verifier: str
    redirect_uri: str
    begun_at: float


class Account(NamedTuple):
    """An account of the provider, as its claims describe it."""

    issuer: str
    subject: str
    preferred_name: str
    groups: frozenset[str]
    authenticated_at: float
    """Time at which the provider asked for a password or the like. 0: it did not say."""


class Provider:
    """The provider, as one API process knows it."""

    def __init__(self, settings: Settings):
        assert settings.oidc_issuer is not None
        assert settings.oidc_client_secret is not None
        self.issuer = settings.oidc_issuer
        self._client_id = settings.oidc_client_id
        self._secret = settings.oidc_client_secret.get_secret_value()
        self._scopes = " ".join(dict.fromkeys(["openid", *settings.oidc_scopes.split()]))
        self._groups_claim = settings.oidc_groups_claim
        self._needs_groups = bool(settings.oidc_roles or settings.oidc_projects)
        self._places = Places(MAX_AT_ONCE, MAX_OF_ADDRESS)
        self._metadata: dict[str, Any] = {}
        self._metadata_at = self._keys_at = self._retried_at = float("-inf")
        self._keys = KeySet([])
        self._requesting_keys = asyncio.Lock()

    async def begin(self, redirect_uri: str, fresh: bool, address: str) -> tuple[str, Round]:
        """Return the address at which the provider signs the user in, and the round. With `fresh`
        the provider asks for a password again. Raises ApiError (503)."""
        round_ = Round(
            generate_token(32), generate_token(32), generate_token(64), redirect_uri, time.time()
        )
        async with self._connected(address) as client:
            metadata = await self._current_metadata(client)
            again = {"prompt": "login", "max_age": LEEWAY_S} if fresh else {"max_age": MAX_AGE_S}
            url, _ = client.create_authorization_url(
                metadata["authorization_endpoint"],
                state=round_.state,
                nonce=round_.nonce,
                code_verifier=round_.verifier,
                redirect_uri=redirect_uri,
                **again,
            )
        return url, round_

    async def finish(self, round_: Round, code: str, address: str) -> Account:
        """Exchange a code, and return the account that it is about. Raises KeyRefused and ApiError
        (503)."""
        async with self._connected(address) as client:
            metadata = await self._current_metadata(client)
            client.token_endpoint_auth_method = _auth_method(metadata)
            try:
                token = await client.fetch_token(
                    metadata["token_endpoint"],
                    code=code,
                    redirect_uri=round_.redirect_uri,
                    code_verifier=round_.verifier,
                )
            except OAuthError as error:
                why = printable(str(error.error))
                more = printable(str(error.description))
                log.warning("the provider refused a code: %s %s", why, more)
                raise KeyRefused(REFUSED.format(why)) from None
            claims = await self._claims(client, metadata, token, round_)
            name = claims.get("preferred_username")
            is_partial = name is None or (self._needs_groups and self._groups_claim not in claims)
            if is_partial and "userinfo_endpoint" in metadata:
                claims = await self._with_userinfo(client, metadata, claims)
            groups = claims.get(self._groups_claim, [])
            at = float(claims.get("auth_time") or 0)
            return Account(
                issuer=self.issuer,
                subject=claims["sub"],
                preferred_name=str(claims.get("preferred_username") or ""),
                groups=frozenset(map(str, groups if isinstance(groups, list) else [groups])),
                authenticated_at=at if math.isfinite(at) else 0.0,
            )

    @asynccontextmanager
    async def _connected(self, address: str) -> AsyncIterator[AsyncOAuth2Client]:
        """Yield a client of the provider, for a browser at an address. Raises ApiError (503) if the
        provider does not answer as it should."""
        client = AsyncOAuth2Client(
            self._client_id,
            self._secret,
            scope=self._scopes,
            code_challenge_method="S256",
            leeway=0,  # an access token may last less than a minute: it is used at once
            timeout=REQUEST_S,
            verify=_tls(),
            follow_redirects=False,
        )
        try:
            async with asyncio.timeout(ROUND_S), self._places.place(address), client:
                yield client
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError, OAuthError, *MALFORMED) as error:
            log.warning("the provider %s does not answer as it should: %r", self.issuer, error)
            raise self._away() from error

    def _away(self) -> ApiError:
        detail = (
            f"the provider of the lab's accounts, {self.issuer}, does not answer: try again later, "
            "or sign in with an API key"
        )
        return unavailable("provider_away", detail, after_s=10)

    async def _current_metadata(self, client: AsyncOAuth2Client) -> Mapping[str, Any]:
        """Return the discovery document, which is at most METADATA_S old. Raises ValueError."""
        if time.monotonic() - self._metadata_at > METADATA_S:
            url = f"{self.issuer.rstrip('/')}/.well-known/openid-configuration"
            metadata = await _json(client, url)
            if metadata.get("issuer") != self.issuer:
                raise ValueError(f"its issuer is {metadata.get('issuer')!r}")
            for name in ENDPOINTS:
                url = str(metadata.get(name) or "")
                is_left_out = name == "userinfo_endpoint" and not url
                if not is_left_out and not (url.isascii() and is_provider_url(url, self.issuer)):
                    raise ValueError(f"its {name} is {url!r}, which is no secure address")
            self._metadata, self._metadata_at = metadata, time.monotonic()
        return self._metadata

    async def _claims(
        self, client: AsyncOAuth2Client, metadata: Mapping[str, Any], token: Any, round_: Round
    ) -> dict[str, Any]:
        """Return the claims of the ID token, if it is valid. Raises KeyRefused."""
        text = token.get("id_token")
        try:
            if not isinstance(text, str):
                raise KeyRefused(WRONG_TOKEN.format("it has no ID token"))
            decoded = await self._decoded(client, metadata, text)
            claims = CodeIDToken(
                decoded.claims,
                decoded.header,
                {
                    "iss": {"essential": True, "value": self.issuer},
                    "aud": {"essential": True, "value": self._client_id},
                    "sub": {"essential": True},
                },
                {
                    "nonce": round_.nonce,
                    "client_id": self._client_id,
                    "access_token": token.get("access_token"),
                },
            )
            claims.validate(leeway=LEEWAY_S)
        except (JoseError, ValueError) as error:
            log.warning("the provider sent an ID token that is not valid: %s", error)
            why = "it has expired" if isinstance(error, ExpiredTokenError) else str(error)
            raise KeyRefused(WRONG_TOKEN.format(printable(why))) from None
        if not isinstance(claims["sub"], str) or not re.fullmatch("[ -~]{1,255}", claims["sub"]):
            raise KeyRefused(WRONG_TOKEN.format("its sub is no text of 1 to 255 ASCII characters"))
        return dict(claims)

    async def _decoded(
        self, client: AsyncOAuth2Client, metadata: Mapping[str, Any], text: str
    ) -> jwt.Token:
        """Return an ID token whose signature is right. An unknown key id is one that the provider
        has just begun to use: the keys are then requested again, once in RETRY_KEYS_S."""
        if time.monotonic() - self._keys_at > KEYS_S:
            await self._fetch_keys(client, metadata)
        keys = self._keys
        try:
            return jwt.decode(text, keys, ALGORITHMS)
        except InvalidKeyIdError:
            async with self._requesting_keys:
                if self._keys is keys:  # no other sign-in has requested them meanwhile
                    if time.monotonic() - self._retried_at < RETRY_KEYS_S:
                        raise
                    self._retried_at = time.monotonic()
                    await self._fetch_keys(client, metadata)
        return jwt.decode(text, self._keys, ALGORITHMS)

    async def _fetch_keys(self, client: AsyncOAuth2Client, metadata: Mapping[str, Any]) -> None:
        document = await _json(client, metadata["jwks_uri"])
        keys: list[Key] = []
        for key in document["keys"]:
            try:
                if key.get("use", "sig") == "sig":
                    keys.append(JWKRegistry.import_key(key))
            except (JoseError, *MALFORMED) as error:
                log.warning("a key of the provider is left out: %r", error)
        self._keys, self._keys_at = KeySet(keys), time.monotonic()

    async def _with_userinfo(
        self, client: AsyncOAuth2Client, metadata: Mapping[str, Any], claims: dict[str, Any]
    ) -> dict[str, Any]:
        """Add the claims of the userinfo endpoint. Those of the ID token count first."""
        answer = await client.get(metadata["userinfo_endpoint"])
        answer.raise_for_status()
        more = answer.json()
        if more.get("sub") != claims["sub"]:
            raise KeyRefused(WRONG_TOKEN.format("its userinfo is about another account"))
        return {**more, **claims}


def printable(text: str) -> str:
    """Return a text of the provider as the audit may have it."""
    return re.sub("[^ -~]", "?", text)[:200]


async def _json(client: AsyncOAuth2Client, url: str) -> dict[str, Any]:
    """Return the JSON object at an address. Raises HTTPError and ValueError."""
    answer = await client.request("GET", url, withhold_token=True)
    answer.raise_for_status()
    document = answer.json()
    if not isinstance(document, dict):
        raise ValueError(f"{url} is no JSON object")
    return document


def _auth_method(metadata: Mapping[str, Any]) -> str:
    methods = metadata.get("token_endpoint_auth_methods_supported", ["client_secret_basic"])
    return "client_secret_basic" if "client_secret_basic" in methods else "client_secret_post"


@cache
def _tls() -> ssl.SSLContext:
    """Return a TLS context with the machine's certificates and those in SSL_CERT_FILE."""
    return ssl.create_default_context()
