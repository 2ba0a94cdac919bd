"""TritonPythonModel: runs a bundle in a process of Triton's Python backend.

Only a model repository's ``model.py`` imports it, because triton_python_backend_utils exists only
there.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from threading import Thread
from time import monotonic
from typing import Any

import triton_python_backend_utils as pb_utils

from ....engines.bundle import EngineBundle
from ....engines.errors import ClosedError, OverloadedError, SkipDecError, UsageError, brief
from ....engines.host.installation import require_extra
from ...tokens.outputs import StreamDelta
from ..async_engine import AsyncEngine, open_warm
from ..messages import ServedRequest
from ..stream import RequestStream
from .check import CHECKING_CLIENT
from .metrics import ModelMetrics, RequestClock
from .settings import BUNDLE_NAME, ModelSettings
from .tensors import OUTPUT_TYPES, Answer, TritonRequest, input_types

_LOGGER = logging.getLogger(__name__)
_LONGEST_STEP = 60.0  # seconds; during a longer step `skipdec triton check` waits and fails
_POLL_SECONDS = 0.05  # between checks for a cancellation, each of which takes a message
_TRITONS_OWN = ("id", "priority", "timeout")  # parameters of any request
_ALIVE = {"text_output": OUTPUT_TYPES["text_output"].array([""])}


class _Cancelled(Exception):  # noqa: N818  (not an error)
    """The client has disconnected or cancelled the request."""


class TritonPythonModel:
    """One bundle and its engine; requests run together, as many as ``max_batch_size`` at once.

    An event loop in a thread of its own sends all responses, so that neither Triton's calls nor the
    engine's thread wait for a client.
    """

    def initialize(self, args: dict[str, str]) -> None:
        """Open the bundle. ``args`` are the backend's, including ``model_config`` as JSON.

        Raises UsageError for parameters that are not allowed, MissingExtraError if a chat template
        needs jinja2, and what `Generator.open` raises.
        """
        config = json.loads(args["model_config"])
        if not pb_utils.using_decoupled_model_transaction_policy(config):
            raise UsageError("model_transaction_policy", "is not decoupled; write decoupled: true")
        settings = ModelSettings.from_parameters(config["parameters"])
        directory = Path(args["model_repository"], args["model_version"])
        self._engine = _open_engine(directory / BUNDLE_NAME, settings, args)
        self._metrics = ModelMetrics(args["model_name"], args["model_version"])
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, name="skipdec responses", daemon=True)
        self._thread.start()
        self._answering: set[Future[None]] = set()

    def execute(self, requests: Sequence[Any]) -> None:
        """Begin to answer requests; responses go through the requests' senders."""
        for request in requests:
            sender = request.get_response_sender()
            try:
                parsed = TritonRequest.from_tensors(_tensors(request))
            except SkipDecError as error:
                self._loop.call_soon_threadsafe(self._refuse, sender, error)
                continue
            answering = asyncio.run_coroutine_threadsafe(self._answer(parsed, sender), self._loop)
            self._answering.add(answering)
            answering.add_done_callback(self._answering.discard)

    def finalize(self) -> None:
        """Close the engine. Triton calls it once all requests have their final response.

        Triton handles no messages meanwhile, so that sending a metric would wait for ever.
        """
        self._metrics.close()
        self._engine.close()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _answer(self, request: TritonRequest, sender: Any) -> None:  # noqa: ANN401
        """Answer a request; in any case send a final response, or its client would wait for ever.

        Metrics are sent before it, because Triton may finalize afterwards.
        """
        try:
            if (
                request.client == CHECKING_CLIENT
                and 0 < self._engine.seconds_in_step < _LONGEST_STEP
            ):
                _send_final(sender, _response(_ALIVE))
                return
            served = await asyncio.to_thread(self._prepared, request)
            async with self._engine.start(served) as stream:
                num_tokens = len(served.request.prompt_token_ids)
                await self._send(request, stream, sender, num_tokens)
        except _Cancelled:
            self._metrics.update(self._engine.stats())
            error = pb_utils.TritonError("cancelled", pb_utils.TritonError.CANCELLED)
            _send_final(sender, pb_utils.InferenceResponse(error=error))
        except Exception as error:
            if not isinstance(error, SkipDecError):
                _LOGGER.exception("a request could not be answered")
            self._refuse(sender, error)

    def _prepared(self, request: TritonRequest) -> ServedRequest:
        """Check a request; in a thread, because long texts, messages and schedules take a while."""
        return self._engine.inputs.prepare(
            request.prompt,
            request.params,
            schedule=request.schedule,
            client=request.client or "",
            draft=request.draft,
        )

    def _refuse(self, sender: Any, error: Exception) -> None:  # noqa: ANN401
        self._metrics.count_failure(type(error).__name__)
        self._metrics.update(self._engine.stats())
        codes = pb_utils.TritonError
        match error:
            case UsageError():
                code = codes.INVALID_ARG
            case OverloadedError() | ClosedError():
                code = codes.UNAVAILABLE
            case _:
                code = codes.INTERNAL
        _send_final(sender, pb_utils.InferenceResponse(error=codes(brief(str(error)), code)))

    async def _send(
        self,
        request: TritonRequest,
        stream: RequestStream,
        sender: Any,  # noqa: ANN401  (pb_utils.InferenceResponseSender)
        num_input_tokens: int,
    ) -> None:
        answer = Answer(
            request,
            schedule=stream.exit_schedule,
            num_input_tokens=num_input_tokens,
            has_text=self._engine.generator.tokenizer is not None,
        )
        clock = RequestClock(self._metrics)
        async for deltas in _steps(stream, sender):
            if clock.tick(deltas):
                self._metrics.update(self._engine.stats())
            for delta in deltas:
                answer.add(delta)
            if answer.is_whole:
                answer.count_drafts(await stream.output())
                clock.end(answer.finish_reasons)
                self._metrics.update(self._engine.stats())
                _send_final(sender, _response(answer.take()))
                return
            if answer.is_due:
                sender.send(_response(answer.take()))


def _open_engine(bundle: Path, settings: ModelSettings, args: dict[str, str]) -> AsyncEngine:
    if EngineBundle.read_manifest(bundle).chat_template is not None:
        require_extra("chat", f"chat template of {bundle}")
    if args["model_instance_kind"] == "GPU":
        settings = settings.updated(device=f"cuda:{args['model_instance_device_id']}")
    return AsyncEngine(open_warm(bundle, settings), settings)


def _tensors(request: Any) -> dict[str, Any]:  # noqa: ANN401  (pb_utils.InferenceRequest)
    """Return the tensors by name, and parameters that `TritonRequest.from_tensors` refuses.

    Triton turns fields of a JSON body that are not inputs, e.g. misspelt ones, into parameters, and
    headers that an operator lets it forward, whose names have hyphens.
    """
    found = {name: pb_utils.get_input_tensor_by_name(request, name) for name in input_types()}
    unknown = {
        name: value
        for name, value in json.loads(request.parameters()).items()
        if name not in _TRITONS_OWN and not name.startswith("triton_") and "-" not in name
    }
    return unknown | {name: one.as_numpy() for name, one in found.items() if one is not None}


async def _steps(
    stream: RequestStream,
    sender: Any,  # noqa: ANN401  (pb_utils.InferenceResponseSender)
) -> AsyncIterator[list[StreamDelta]]:
    """Yield all available deltas at a time. Raises _Cancelled if the client has cancelled."""
    polled = monotonic()
    while True:
        deltas: list[StreamDelta] | None = None
        with suppress(TimeoutError):
            async with asyncio.timeout(_POLL_SECONDS):
                deltas = await stream.read()
        if monotonic() - polled >= _POLL_SECONDS:
            if sender.is_cancelled():
                raise _Cancelled
            polled = monotonic()
        if deltas is not None:
            if not deltas:
                return
            yield deltas


def _response(outputs: Mapping[str, Any]) -> Any:  # noqa: ANN401  (pb_utils.InferenceResponse)
    return pb_utils.InferenceResponse([pb_utils.Tensor(*output) for output in outputs.items()])


def _send_final(sender: Any, response: Any) -> None:  # noqa: ANN401
    sender.send(response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
