"""Triton's input tensors are parsed into a request."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from skipdec import SamplingParams, UsageError
from skipdec.runtime.serving.triton.tensors import TritonRequest, input_types

Tensors = dict[str, npt.NDArray[Any]]


def tensors(**values: object) -> Tensors:
    """Return tensors as the Python backend passes them."""
    types = input_types()
    given = {name: value if isinstance(value, list) else [value] for name, value in values.items()}
    return {
        name: types[name].array(value if types[name].size == -1 else value[0])
        for name, value in given.items()
    }


def params(**values: object) -> SamplingParams:
    return TritonRequest.from_tensors(tensors(text_input="a", **values)).params


def test_messages_are_a_prompt() -> None:
    request = TritonRequest.from_tensors(tensors(messages='[{"role": "user", "content": "Hi"}]'))
    assert request.prompt == {"messages": [{"role": "user", "content": "Hi"}]}
    with pytest.raises(UsageError, match="messages"):
        TritonRequest.from_tensors(tensors(messages="[")).prompt  # noqa: B018  (reading parses it)
    with pytest.raises(UsageError, match="give one of text_input, input_ids and messages"):
        TritonRequest.from_tensors(tensors(messages="[]", text_input="a"))


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, SamplingParams()),
        ({"temperature": 0.8, "top_p": 0.95}, SamplingParams(temperature=0.8, top_p=0.95)),
        ({"max_tokens": 3, "seed": 2**64 - 1}, SamplingParams(max_tokens=3, seed=2**64 - 1)),
        ({"random_seed": 4}, SamplingParams(seed=4)),
        ({"stop_words": ["\n", "é"]}, SamplingParams(stop=("\n", "é"))),
        ({"sampling_parameters": '{"top_k": 5, "n": 2}'}, SamplingParams(top_k=5, n=2)),
        (
            {"sampling_parameters": '{"temperature": "0.1", "ignore_eos": "True", "stop": "7"}'},
            SamplingParams(temperature=0.1, ignore_eos=True, stop="7"),
        ),
        (
            {"sampling_parameters": '{"top_k": "9223372036854775807"}'},
            SamplingParams(top_k=2**63 - 1),
        ),
        ({"return_logprobs": True}, SamplingParams(logprobs=0)),
        (
            {"return_cumulative_logprob": True, "sampling_parameters": '{"logprobs": 4}'},
            SamplingParams(logprobs=4),
        ),
    ],
)
def test_tensors_and_json_set_sampling_params(
    values: dict[str, object], expected: SamplingParams
) -> None:
    assert params(**values) == expected


def test_a_prompt_is_a_text_or_token_ids() -> None:
    assert TritonRequest.from_tensors(tensors(text_input="é")).prompt == "é"
    assert TritonRequest.from_tensors(tensors(input_ids=[5, 6])).prompt == [5, 6]


def test_a_request_may_switch_its_drafts_off() -> None:
    assert TritonRequest.from_tensors(tensors(text_input="a", draft="off")).draft == "off"
    assert TritonRequest.from_tensors(tensors(text_input="a")).draft is None


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({}, "text_input, input_ids and messages"),
        (tensors(text_input="a", input_ids=[1]), "text_input, input_ids and messages"),
        (tensors(input_ids=[1], exclude_input_in_output=False), "with text_input only"),
        ({"text_input": np.array([b"\xff"], dtype=object)}, "text_input | is no UTF-8"),
        ({"text_input": np.array([b"a", b"b"], dtype=object)}, "has 2 values; allowed: one"),
        (tensors(text_input="a", max_tokens=0), "max_tokens is 0"),
        (tensors(text_input="a", schedule="/srv/2x.JSON "), "a file's name; give the schedule's"),
        (tensors(text_input="a", schedule='{"num_layers": 6}'), "a document; give the schedule's"),
        (tensors(text_input="a", temperature=float("nan")), "temperature is nan"),
        (tensors(text_input="a", draft="own"), "draft is 'own'; allowed in a request: off"),
        (tensors(text_input="a", sampling_parameters="[1]"), "allowed: a JSON object"),
        (tensors(text_input="a", sampling_parameters='{"tempratur": 1}'), "'temperature'"),
        (tensors(text_input="a", seed=1, random_seed=2), "random_seed | is given twice"),
        (
            tensors(text_input="a", top_k=1, sampling_parameters='{"top_k": 1}'),
            "top_k | is given twice",
        ),
        ({"text": np.array([b"a"], dtype=object)}, "text | is unknown"),
    ],
)
def test_invalid_tensors_are_refused_with_the_reason(given: Tensors, problem: str) -> None:
    with pytest.raises(UsageError) as refused:
        TritonRequest.from_tensors(given)
    assert problem in str(refused.value)


@pytest.mark.parametrize(
    "values",
    [
        {"input_ids": [5] * 200_000},
        {"schedule": "x" * 20_000},
        {"sampling_parameters": "[" * (2 << 20)},
        {"sampling_parameters": '{"stop_token_ids": [' + "-1," * 100_000 + "-1]}"},
        {"stop_words": [""] * 100_000},
    ],
    ids=lambda values: next(iter(values)),
)
def test_an_error_about_a_huge_input_is_short(values: dict[str, object]) -> None:
    with pytest.raises(UsageError) as caught:
        params(**values)
    assert len(str(caught.value)) < 1000
