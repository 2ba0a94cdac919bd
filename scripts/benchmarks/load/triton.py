"""A client of a model in Triton Inference Server: one gRPC stream per request, one channel."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np

from benchmarks.load.client import RequestFailed
from benchmarks.load.requests import LoadRequest


class TritonClient:
    """Client of the model ``model`` of the server at ``address``, HOST:PORT of its gRPC service.

    Needs tritonclient[grpc], as in the environment of scripts/tritonserver/environment.sh.
    """

    def __init__(self, address: str, *, model: str) -> None:
        from tritonclient.grpc import aio

        self._client = aio.InferenceServerClient(address)
        self._model = model

    async def close(self) -> None:
        """Close the channel."""
        await self._client.close()

    @asynccontextmanager
    async def stream(self, request: LoadRequest) -> AsyncIterator[AsyncIterator[int]]:
        """Send a request; leaving the block cancels the gRPC call."""

        async def inputs() -> AsyncIterator[dict[str, Any]]:
            yield {"model_name": self._model, "inputs": _inputs(request)}

        responses = self._client.stream_infer(inputs())
        try:
            yield _events(responses)
        finally:
            responses.cancel()


async def _events(responses: Any) -> AsyncIterator[int]:  # noqa: ANN401  (tritonclient's iterator)
    from tritonclient.utils import InferenceServerException

    try:
        async for result, error in responses:
            if error is not None:
                raise RequestFailed(f"error {error.status() or str(error)[:40]}")
            if (count := result.as_numpy("num_output_tokens")) is not None:
                yield int(count.sum())
            if result.get_response().parameters["triton_final_response"].bool_param:
                return
    except InferenceServerException as error:
        raise RequestFailed(f"error {error.status()}") from error


def _inputs(request: LoadRequest) -> list[Any]:
    inputs = [
        _input("max_tokens", "INT32", np.array([request.max_tokens], np.int32)),
        _text("sampling_parameters", json.dumps(dict(request.sampling))),
        _input("stream", "BOOL", np.array([True])),
        _input("return_num_output_tokens", "BOOL", np.array([True])),
    ]
    if isinstance(request.prompt, str):
        inputs.append(_text("text_input", request.prompt))
    else:
        inputs.append(_input("input_ids", "INT32", np.array(request.prompt, np.int32)))
    if request.schedule is not None:
        inputs.append(_text("schedule", request.schedule))
    return inputs


def _text(name: str, text: str) -> Any:  # noqa: ANN401  (InferInput)
    return _input(name, "BYTES", np.array([text.encode()], dtype=object))


def _input(name: str, kind: str, array: np.ndarray) -> Any:  # noqa: ANN401  (InferInput)
    from tritonclient.grpc import InferInput

    tensor = InferInput(name, list(array.shape), kind)
    tensor.set_data_from_numpy(array)
    return tensor
