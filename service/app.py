"""The application: `uvicorn --factory service.app:create_app`."""

import re
from functools import cache
from typing import Any, ClassVar

from asgi_correlation_id import CorrelationIdMiddleware
from fastapi import APIRouter, Depends, FastAPI, Request, Response
from fastapi.responses import JSONResponse
from starlette.routing import BaseRoute

from service.accounts import oidc_routes
from service.accounts import project_routes as projects
from service.accounts import routes as administration
from service.accounts import sign_in_routes as sign_in
from service.accounts.oidc import Provider
from service.accounts.sign_in import Links, session_key
from service.curves import routes as curves
from service.datasets import routes as datasets
from service.db.engine import Database
from service.events import routes as streams
from service.events.poller import Poller
from service.experiments import query_routes as experiment_queries
from service.experiments import result_routes as experiment_results
from service.experiments import routes as experiments
from service.experiments import text_routes as texts
from service.places import Places
from service.presets import routes as presets
from service.queue import routes as queue
from service.queue.snapshot import QueueSnapshots
from service.settings import Settings
from service.sweeps import routes as sweeps
from service.ui import pages
from service.web import contract, health
from service.web.access_log import AccessLog
from service.web.dependencies import current_user, noted_keys
from service.web.errors import ProblemDocument, install_handlers
from service.web.gate import Gate
from service.web.head_requests import HeadRequests
from service.web.headers import AnswerHeaders, guard_origins
from service.web.meters import Meters
from service.web.route import StrictRoute
from service.web.sign_in_cookie import SignInCookie
from service.webhooks import routes as webhooks
from service.workers import routes as monitoring

MAX_BUNDLES = 12
"""Maximum number of bundles that a process builds and sends at the same time."""
MAX_UPLOADS, INSPECTIONS = 100, 2
"""Maximum numbers of uploads that a process receives, and that it inspects, at the same time."""
ERRORS: dict[int | str, dict[str, object]] = {
    "4XX": {"model": ProblemDocument, "description": "Description of the error, as in RFC 9457"},
    "503": {"model": ProblemDocument, "description": "Not now: Retry-After says when"},
}

ROUTERS = (
    experiments.custom,
    experiments.batches,
    experiments.router,
    experiment_queries.custom,
    experiment_queries.router,
    sweeps.router,
    experiment_results.router,
    curves.router,
    curves.custom,
    texts.router,
    streams.router,
    webhooks.router,
    datasets.uploads,
    datasets.router,
    presets.custom,
    presets.router,
    monitoring.router,
    administration.router,
    projects.router,
    queue.router,
    sign_in.router,
)
"""Routers that require a key."""


class Service(FastAPI):
    """FastAPI, whose OpenAPI document is built and rendered once per process: that takes half a
    second, and each unknown path is compared with those in it."""

    _document: ClassVar[dict[str, Any] | None] = None
    _rendered: ClassVar[bytes | memoryview | None] = None

    def openapi(self) -> dict[str, Any]:
        if Service._document is None:
            Service._document = contract.complete(super().openapi())
        return Service._document

    @staticmethod
    async def document(request: Request) -> Response:
        if Service._rendered is None:
            Service._rendered = JSONResponse(request.app.openapi()).body
        return Response(Service._rendered, media_type="application/json")


def create_app(settings: Settings | None = None) -> FastAPI:
    """Create the FastAPI app. The store and the database that the settings name
    must be prepared."""
    settings = settings or Settings()
    app = Service(title="MPT Lab", version="1", openapi_url=None, redirect_slashes=False)
    app.add_route("/openapi.json", Service.document, include_in_schema=False)
    app.state.settings = settings
    app.state.database = Database(settings.url, settings.api_connections)
    app.state.queue_snapshots = QueueSnapshots(settings.worker_silent_s, settings.share)
    app.state.poller = Poller(app.state.database)
    app.state.gate = Gate(settings, app.state.database)
    app.state.bundles = Places(MAX_BUNDLES, of_user=2)
    app.state.uploads = Places(MAX_UPLOADS, datasets.MAX_USER_UPLOADS)
    app.state.inspections = Places(INSPECTIONS, 1)  # each may take a gigabyte
    app.state.small_inspections = Places(INSPECTIONS, 1)
    app.state.noted_keys = noted_keys()
    key = session_key(settings.session_key_file)
    app.state.links = Links(key)
    app.state.provider = None if settings.oidc_issuer is None else Provider(settings)
    app.state.refused_sign_ins = sign_in.Refusals()
    app.add_middleware(SignInCookie, session_key=key)
    app.add_middleware(HeadRequests)
    app.state.meters = Meters()
    app.add_middleware(AccessLog, meters=app.state.meters)
    guard_origins(app, settings)
    app.add_middleware(
        CorrelationIdMiddleware, header_name="X-Request-ID", validator=_is_request_id
    )
    app.add_middleware(AnswerHeaders)  # the last added is the first to see a request
    install_handlers(app)
    pages.show_missing_pages(app)
    app.router.routes += _routes()
    return app


@cache
def _routes() -> list[BaseRoute]:
    """Routers of every application in a process. FastAPI takes a tenth of a second to prepare
    them."""
    found = APIRouter(responses=ERRORS)
    found.include_router(pages.router)
    for router in (health.router, sign_in.public, oidc_routes.public):
        found.include_router(router)
    for router in ROUTERS:
        assert issubclass(router.route_class, StrictRoute)
        assert router.route_class.needs_key
        found.include_router(router, dependencies=[Depends(current_user)])
    return found.routes


def _is_request_id(given: str) -> bool:
    """Return whether a caller's request id is safe to log. Otherwise the request gets a new id."""
    return re.fullmatch(r"[A-Za-z0-9._-]{1,128}", given) is not None
