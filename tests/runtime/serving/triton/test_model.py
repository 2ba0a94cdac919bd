"""The Python backend's model runs with a stand-in for the module that only Triton has."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from threading import get_ident
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest

from skipdec import UsageError
from skipdec.runtime.serving.triton.tensors import TritonRequest
from skipdec.runtime.tokens.outputs import StreamDelta

MODEL = "skipdec.runtime.serving.triton.model"


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> Iterator[MagicMock]:
    utils = MagicMock()
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", utils)
    yield utils
    for name in (MODEL, "skipdec.runtime.serving.triton.metrics"):
        sys.modules.pop(name, None)


def test_messages_are_parsed_outside_the_event_loop(
    backend: MagicMock, monkeypatch: pytest.MonkeyPatch
) -> None:
    from skipdec.runtime.serving.triton.model import TritonPythonModel

    threads = []

    def read(request: TritonRequest) -> None:
        threads.append(get_ident())
        raise UsageError("messages", "are not JSON")

    monkeypatch.setattr(TritonRequest, "prompt", property(read))
    model, sender = TritonPythonModel(), MagicMock()
    model._engine = SimpleNamespace(inputs=MagicMock(), stats=MagicMock())  # type: ignore[assignment]
    model._metrics = MagicMock()
    asyncio.run(model._answer(TritonRequest(messages="["), sender))
    sender.send.assert_called_once()
    assert threads
    assert get_ident() not in threads


def test_each_completion_has_a_first_token_time_and_gaps(
    backend: MagicMock,
) -> None:
    from skipdec.runtime.serving.triton.metrics import RequestClock

    def token(index: int, *token_ids: int) -> StreamDelta:
        return StreamDelta(0, index, token_ids, "", None, layers=2)

    metrics = MagicMock()
    clock = RequestClock(metrics)
    assert clock.tick([token(0, 5), token(1, 5)])
    assert not clock.tick([token(0, 6), token(0, 7), token(1)])  # several deltas of a slow reader
    observed = [call.args[0] for call in metrics.observe.call_args_list]
    assert observed == ["time_to_first_token_seconds"] * 2 + ["inter_token_seconds"] * 2


@pytest.mark.parametrize(
    ("parameters", "problem"),
    [
        (
            '{"max_tokes": 5, "id": "7", "triton_final": true, "x-trace": "1"}',
            "max_tokes | is unknown; allowed: text_input, input_ids",
        ),
        ('{"max_tokens": 5}', "max_tokens | is a parameter of the request; send it as an input"),
    ],
)
def test_a_parameter_is_refused_by_name(backend: MagicMock, parameters: str, problem: str) -> None:
    from skipdec.runtime.serving.triton.model import TritonPythonModel

    backend.get_input_tensor_by_name.return_value = None
    request, model = MagicMock(), TritonPythonModel()
    request.parameters.return_value = parameters
    model._loop = MagicMock()
    model.execute([request])
    _, _, error = model._loop.call_soon_threadsafe.call_args.args
    assert str(error).startswith(problem)
    assert "x-trace" not in str(error)


def test_no_metric_is_sent_after_the_model_was_closed(backend: MagicMock) -> None:
    """Triton would not answer the message, and the thread would wait for ever."""
    from skipdec.runtime.serving.triton.metrics import ModelMetrics, RequestClock

    metrics = ModelMetrics("model", "1")
    clock = RequestClock(metrics)
    metrics.close()
    family = backend.MetricFamily.return_value
    before = len(family.mock_calls)
    clock.tick([StreamDelta(0, 0, (5, 6), "", None, layers=2)])
    clock.end(["stop"])
    metrics.count_failure("SkipDecError")
    assert len(family.mock_calls) == before
