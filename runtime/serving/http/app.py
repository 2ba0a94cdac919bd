"""The application: its routes and their handlers."""

from __future__ import annotations

import re
from base64 import b64encode
from hashlib import sha256
from importlib.resources import files
from typing import Any

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response

from ....engines.errors import SkipDecError, shown
from ....engines.host.installation import own_version
from ...schedule.text import format_schedule
from .chat import ChatAnswer, ChatRequest
from .completions import TextAnswer, read_request
from .config import ServerConfig
from .logs import RequestRecord
from .metrics import Metrics
from .middleware import (
    ApiKeys,
    BodyMiddleware,
    KeyMiddleware,
    RecordMiddleware,
)
from .models import ServedModel, ServedModels
from .protocol import ApiError, CompletionRequest, TextRequest, api_error, unavailable
from .scoring import scored_answer

_INLINE = re.compile(r"<(script|style)>(.*?)</\1>", re.DOTALL)


_SHOWN_TOKENS = 64  # tokens whose layers /v1/schedules lists


def _load_page() -> tuple[str, dict[str, str]]:
    """Read the page at ``/`` and make its headers: only its own scripts and styles may run."""
    html = (files(__package__) / "playground.html").read_text(encoding="utf-8")
    hashes: dict[str, list[str]] = {"script": [], "style": []}
    for kind, text in _INLINE.findall(html):
        hashes[kind].append(f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'")
    policy = (
        f"default-src 'self'; script-src {' '.join(hashes['script'])}; "
        f"style-src {' '.join(hashes['style'])}; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return html, {"Content-Security-Policy": policy, "Referrer-Policy": "no-referrer"}


def build_app(models: ServedModels, config: ServerConfig, keys: ApiKeys) -> FastAPI:
    """Create the application that serves ``models``, which may still be loading."""
    metrics = Metrics(models.stats)
    app = FastAPI(
        title="skipdec",
        version=own_version(),
        docs_url=None,  # its pages load scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,  # it would redirect to http, even behind a proxy with TLS
    )
    routes = _Routes(models, config, metrics)
    completions, chats = _body_of(CompletionRequest), _body_of(ChatRequest)
    add = app.add_api_route
    add("/", routes.playground, methods=["GET"], include_in_schema=False)
    add("/favicon.ico", routes.icon, methods=["GET"], include_in_schema=False)
    add("/v1/completions", routes.complete, methods=["POST"], openapi_extra=completions)
    add("/v1/chat/completions", routes.chat, methods=["POST"], openapi_extra=chats)
    add("/v1/models", routes.list_models, methods=["GET"])
    add("/v1/models/{name:path}", routes.show_model, methods=["GET"])
    add("/v1/schedules", routes.list_schedules, methods=["GET"])
    for path in ("/health", "/health/live"):  # the former is vLLM's
        add(path, routes.live, methods=["GET"])
    add("/health/ready", routes.ready, methods=["GET"])
    add("/version", routes.version, methods=["GET"])
    add("/metrics", routes.metrics, methods=["GET"])
    for error in (ApiError, SkipDecError, HTTPException):
        app.add_exception_handler(error, _answer)
    app.add_middleware(KeyMiddleware, keys=keys, config=config)
    app.add_middleware(BodyMiddleware, limit=config.max_body, seconds=config.read_timeout)
    app.add_middleware(RecordMiddleware, metrics=metrics)  # added last: outermost
    return app


def _body_of(kind: type[TextRequest]) -> dict[str, Any]:
    """Describe a body for /openapi.json."""
    body = {"content": {"application/json": {"schema": kind.model_json_schema()}}}
    return {"requestBody": {"required": True, **body}}


class _Routes:
    def __init__(self, models: ServedModels, config: ServerConfig, metrics: Metrics) -> None:
        self._models = models
        self._config = config
        self._metrics = metrics
        self._html, self._page_headers = _load_page()

    async def playground(self, request: Request) -> Response:
        """Return the playground page."""
        return HTMLResponse(self._html, headers=self._page_headers)

    async def icon(self, request: Request) -> Response:
        """Return no content: browsers request an icon unasked."""
        return Response(status_code=204)

    async def complete(self, request: Request) -> Response:
        """Continue prompts, as OpenAI's completions endpoint does."""
        models, metrics = self._models, self._metrics
        body, model, prepared = await read_request(CompletionRequest, request, models, self._config)
        if body.scores_prompts:
            return await scored_answer(body, model, prepared, request, models, metrics)
        answer = TextAnswer(body, model, request, models, metrics)
        await answer.queue(prepared)
        return answer if body.stream else await answer.whole()

    async def chat(self, request: Request) -> Response:
        """Answer the messages of a chat, as OpenAI's chat endpoint does."""
        models = self._models
        body, model, prepared = await read_request(ChatRequest, request, models, self._config)
        answer = ChatAnswer(body, model, request, models, self._metrics)
        await answer.queue(prepared)
        return answer if body.stream else await answer.whole()

    async def list_models(self, request: Request) -> Response:
        """List what is served."""
        listed = [_model_document(model) for model in self._models.loaded.values()]
        return JSONResponse({"object": "list", "data": listed})

    async def show_model(self, request: Request, name: str) -> Response:
        """Show one of the models."""
        return JSONResponse(_model_document(self._models.named(name)))

    async def list_schedules(self, request: Request) -> Response:
        """List the exit schedules that a request may ask for, with the layers of each token."""
        listed = [_schedules_document(model) for model in self._models.loaded.values()]
        return JSONResponse({"object": "list", "data": listed})

    async def live(self, request: Request) -> Response:
        """Report whether the process works: no engine has failed or hangs."""
        hung = self._models.hung(self._config.hang_timeout)
        if hung is not None:
            raise ApiError(500, hung, "server_error", code="not_live")
        return JSONResponse({"status": "live"})

    async def ready(self, request: Request) -> Response:
        """Report whether the server accepts requests."""
        reason = self._models.unready
        if reason is not None:
            raise unavailable(reason)
        return JSONResponse({"status": "ready"})

    async def version(self, request: Request) -> Response:
        """Return the version of skipdec."""
        return JSONResponse({"version": own_version()})

    async def metrics(self, request: Request) -> Response:
        """Return the metrics in Prometheus' text format."""
        kind = "text/plain; version=1.0.0; charset=utf-8"
        return PlainTextResponse(self._metrics.text(), media_type=kind)


async def _answer(request: Request, error: Exception) -> Response:
    """Answer in OpenAI's error format."""
    if isinstance(error, HTTPException):  # raised by the router
        headers, route = error.headers or {}, f"{request.method} {shown(request.url.path)}"
        remedy = f"allowed: {headers['Allow']}" if "Allow" in headers else "see /openapi.json"
        message = f"{route} is not served; {remedy}"
        answer = ApiError(error.status_code, message, headers=headers)
    else:
        assert isinstance(error, ApiError | SkipDecError)
        answer = api_error(error)
    RequestRecord.of(request.scope).error = answer.code or answer.kind
    return answer.response()


def _model_document(model: ServedModel) -> dict[str, Any]:
    inputs = model.engine.inputs
    return {
        "id": model.name,
        "object": "model",
        "created": model.created,
        "owned_by": "skipdec",
        "max_model_len": inputs.max_model_len or inputs.model.max_seq_len,
        "num_layers": inputs.model.num_layers,
        "kernels": inputs.kernels,
        "schedule": format_schedule(model.schedule_of(None, _SHOWN_TOKENS)),
        "draft": "off" if inputs.draft is None else str(inputs.draft),
        "chat": model.has_template,
    }


def _schedules_document(model: ServedModel) -> dict[str, Any]:
    listed = []
    for text in model.listed:
        schedule = model.schedule_of(text, _SHOWN_TOKENS)
        layers = [schedule.budget(index) for index in range(_SHOWN_TOKENS)]
        resolved = format_schedule(schedule)
        listed.append({"schedule": text, "resolved": resolved, "layers_per_token": layers})
    return {
        "model": model.name,
        "default": format_schedule(model.schedule_of(None, _SHOWN_TOKENS)),
        "any": "any" in model.schedules,
        "allowed": listed,
    }
