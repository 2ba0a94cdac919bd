"""SamplingParams have vLLM's defaults, and one error names every bad value."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from skipdec.engines.errors import UsageError
from skipdec.runtime.tokens.sampling import SamplingParams


def test_defaults_sample_16_tokens_from_the_plain_distribution() -> None:
    params = SamplingParams()
    assert (params.temperature, params.top_p, params.top_k, params.min_p) == (1.0, 1.0, 0, 0.0)
    assert (params.n, params.max_tokens, params.min_tokens, params.seed) == (1, 16, 0, None)
    assert params.repetition_penalty == 1.0
    assert not params.greedy


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n", 0),
        ("n", True),
        ("n", 1.0),
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("temperature", float("inf")),
        ("temperature", "0.7"),
        ("temperature", True),
        ("top_p", 0.0),
        ("top_p", 1.01),
        ("top_k", -2),
        ("top_k", 3.0),
        ("min_p", 1.5),
        ("repetition_penalty", 0.0),
        ("presence_penalty", 2.5),
        ("frequency_penalty", -2.5),
        ("seed", -1),
        ("max_tokens", 0),
        ("min_tokens", -1),
        ("stop", [""]),
        ("stop", 3),
        ("stop_token_ids", [-1]),
        ("stop_token_ids", [True]),
        ("ignore_eos", 1),
        ("logprobs", -1),
        ("best_of", 2),
        ("n", 1025),
        ("temperature", 1e7),
        ("repetition_penalty", 1e-300),
        ("stop", ["x"] * 65),
        ("stop", "x" * 1025),
    ],
)
def test_a_bad_value_is_refused_with_its_name_and_value(field: str, value: object) -> None:
    with pytest.raises(UsageError) as caught:
        SamplingParams(**{field: value})
    assert len(caught.value.problems) == 1
    assert field in str(caught.value)
    assert field == "best_of" or repr(value)[:80] in str(caught.value)


@pytest.mark.parametrize("field", ["top_k", "min_tokens"])
def test_an_integer_of_more_than_64_bits_is_refused(field: str) -> None:
    assert getattr(SamplingParams(max_tokens=None, **{field: 2**63 - 1}), field) == 2**63 - 1
    for value in (2**63, 10**400, 10**5000):
        with pytest.raises(UsageError, match=rf"{field} is .*; allowed: an integer from .*2\*\*63"):
            SamplingParams(max_tokens=None, **{field: value})


def test_all_problems_are_reported_in_one_error() -> None:
    with pytest.raises(UsageError) as caught:
        SamplingParams(top_p=2.0, stop=["", 1], colour="red", min_tokens=20, max_tokens=10)
    problems = caught.value.problems
    assert len(problems) == 4
    assert any("min_tokens is 20" in problem and "10" in problem for problem in problems)


def test_greedy_with_several_completions_is_refused() -> None:
    with pytest.raises(UsageError, match="greedy completions are all alike"):
        SamplingParams(temperature=0, n=2)


def test_stop_may_be_one_string_or_a_list() -> None:
    assert SamplingParams(stop="END").stop == ("END",)
    assert SamplingParams(stop=["a", "b"], stop_token_ids=[3]).stop == ("a", "b")
    assert SamplingParams(stop=None, stop_token_ids=None).stop_token_ids == ()


def test_numpy_values_become_python_values() -> None:
    given = SamplingParams(
        n=np.int64(2), temperature=np.float32(0.5), stop_token_ids=np.array([5]), seed=np.uint8(1)
    )
    assert given == SamplingParams(n=2, temperature=0.5, stop_token_ids=[5], seed=1)
    assert SamplingParams(stop_token_ids=[np.int32(5)]).stop_token_ids == (5,)
    with pytest.raises(UsageError, match="n is True"):
        SamplingParams(n=np.bool_(True))


def test_names_of_pythons_arguments_are_unknown_parameters() -> None:
    for name in ("self", "values", "changes", "\ud800"):
        with pytest.raises(UsageError, match="allowed: max_tokens"):
            SamplingParams().updated(**{name: 1})


def test_to_dict_round_trips() -> None:
    params = SamplingParams(stop="END", stop_token_ids=[4], seed=2)
    assert SamplingParams(**json.loads(json.dumps(params.to_dict()))) == params


def test_an_updated_copy_is_checked_and_keeps_the_original() -> None:
    params = SamplingParams(temperature=0)
    assert params.updated(top_k=5) == SamplingParams(temperature=0, top_k=5)
    assert params.top_k == 0
    with pytest.raises(UsageError, match="top_k is -9"):
        params.updated(top_k=-9)


def test_params_are_immutable() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        SamplingParams().n = 2


def test_json_round_trips() -> None:
    params = SamplingParams(stop=["x"], stop_token_ids=[2], seed=7, max_tokens=None)
    assert SamplingParams.model_validate_json(params.model_dump_json()) == params


def test_tokens_beyond_the_vocabulary_are_named() -> None:
    problems = SamplingParams(stop_token_ids=[9, 10], logprobs=11).vocabulary_problems(10)
    assert len(problems) == 2
    assert "stop_token_ids has 10; allowed: 0 to 9" in problems[0]


@pytest.mark.parametrize(
    "fields",
    [
        {"stop_token_ids": [-1] * 10**5},
        {"stop": [""] * 10**5},
        {"stop": ["x" * 10**6]},
        {"seed": [[]] * 10**5},
        {"min_tokens": 10**4000},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_error_messages_stay_short(fields: dict[str, Any]) -> None:
    with pytest.raises(UsageError) as caught:
        SamplingParams(**fields)
    assert len(caught.value.problems) == 1
    assert len(str(caught.value)) < 400
