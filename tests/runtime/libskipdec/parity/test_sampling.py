"""Tokens sampled in C++ equal those of the Python Sampler, bit for bit."""

from __future__ import annotations

import random
import re
import struct
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from programs import built_program

from skipdec.engines.errors import SkipDecError, UsageError
from skipdec.engines.kernels.library import find_library
from skipdec.runtime.tokens.sampler import Sampler, row_logprobs
from skipdec.runtime.tokens.sampling import SamplingParams


@dataclass(frozen=True)
class Case:
    """One sequence, with the logits of each step: float32 [steps, V]."""

    params: dict[str, Any]
    logits: NDArray[np.float32]
    prompt: Sequence[int] = ()
    output_index: int = 0
    end_token_ids: Sequence[int] = ()

    def packed(self) -> bytes:
        """Encode a case for sample.cpp."""
        defaults = {name: info.default for name, info in SamplingParams.model_fields.items()}
        params = defaults | self.params
        number, whole = struct.Struct("<d").pack, struct.Struct("<q").pack
        doubles = ("temperature", "top_p", "min_p")
        penalties = ("repetition_penalty", "presence_penalty", "frequency_penalty")
        parts = [whole(self.logits.shape[1]), whole(self.output_index)]
        parts += [whole(len(self.end_token_ids)), *map(whole, self.end_token_ids)]
        parts += [number(params[name]) for name in doubles + penalties]
        parts += [whole(params[name]) for name in ("max_tokens", "top_k", "n", "min_tokens")]
        parts += [whole(params["ignore_eos"])]
        seed, logprobs = params["seed"], params["logprobs"]
        parts += [whole(seed is not None), struct.pack("<Q", seed or 0)]
        parts += [whole(logprobs is not None), whole(logprobs or 0)]
        for ids in (params["stop_token_ids"], self.prompt):
            parts += [whole(len(ids)), struct.pack(f"<{len(ids)}q", *ids)]
        parts += [whole(self.logits.size), self.logits.tobytes()]
        return b"".join(parts)

    def sampled_in_python(self) -> str:
        """Return the tokens and, after an error, its message, as sample.cpp does."""
        vocab_size, text = self.logits.shape[1], ""
        try:
            params = SamplingParams(**self.params)
            if problems := params.vocabulary_problems(vocab_size, self.end_token_ids):
                raise UsageError("SamplingParams", *problems)
            sampler = Sampler(
                params,
                self.prompt,
                vocab_size,
                self.output_index,
                end_token_ids=self.end_token_ids,
            )
            for row in self.logits:
                text += f"{sampler.sample(row).token_id};"
        except SkipDecError as error:
            text += str(error)
        return text


def sampled_in_cpp(cases: Sequence[Case]) -> list[str]:
    records = b"".join(case.packed() for case in cases)
    result = subprocess.run(
        [built_program("sample")], input=records, capture_output=True, check=True
    )
    return result.stdout.decode().split("\0")[:-1]


def random_logits(source: np.random.Generator, vocab_size: int, steps: int) -> NDArray[np.float32]:
    """Return [steps, V]: spread, tied, mostly -inf, all equal or partly invalid."""
    logits = source.normal(0, source.choice([0.1, 2, 20]), (steps, vocab_size)).astype(np.float32)
    kind = source.integers(6)
    if kind == 1:
        logits = np.round(logits)
    elif kind == 2:
        logits[source.random(logits.shape) < 0.7] = -np.inf
        logits[:, source.integers(vocab_size)] = 1
    elif kind == 3:
        logits[:] = 0
    elif kind == 4 and source.random() < 0.3:
        bad = source.choice([np.nan, np.inf, -np.inf])
        logits[-1, source.random(vocab_size) < source.choice([0.01, 1])] = bad
    return logits


def random_case(seed: int) -> Case:
    source, draw = np.random.default_rng(seed), random.Random(seed)
    vocab_size = draw.choice([4, 5, 63, 64, 65, 100, 777, 5000] + [50272] * (seed % 50 == 0))
    steps = 3 if vocab_size > 5000 else 8
    params: dict[str, Any] = {
        "temperature": draw.choice([0.0, 1e-5, 0.3, 0.7, 1.0, 1.0, 1.7, 1e6]),
        "seed": draw.choice([0, 1, 42, 2**32, 2**63, 2**64 - 1]),
    }
    options = {
        "top_k": draw.choice([-1, 1, 2, 40, vocab_size, vocab_size + 1]),
        "top_p": draw.choice([1e-9, 0.1, 0.5, 0.95, 0.999999]),
        "min_p": draw.choice([1e-300, 0.01, 0.3, 1.0]),
        "repetition_penalty": draw.choice([0.01, 0.9, 1.1, 100.0]),
        "presence_penalty": draw.choice([-2.0, 0.3, 2.0]),
        "frequency_penalty": draw.choice([-0.1, 0.7, 2.0]),
        "stop_token_ids": draw.sample(range(vocab_size), draw.randrange(1, 5)),
        "min_tokens": draw.randrange(1, 9),
        "ignore_eos": True,
    }
    params |= {name: value for name, value in options.items() if draw.random() < 0.35}
    return Case(
        params,
        random_logits(source, vocab_size, steps),
        prompt=[draw.randrange(vocab_size) for _ in range(draw.choice([1, 3, 200]))],
        output_index=draw.choice([0, 1, 2, 1023]),
        end_token_ids=draw.choice([(), (2,), (2, 1, 3)]),
    )


def test_random_sequences_have_equal_tokens() -> None:
    if find_library() is None:
        pytest.skip("Python has no compiled kernels here: numpy's exp may differ in a last bit")
    cases = [random_case(seed) for seed in range(3000)]
    for seed, (case, found) in enumerate(zip(cases, sampled_in_cpp(cases), strict=True)):
        assert found == case.sampled_in_python(), (seed, case.params, case.logits.shape)


def test_logprobs_equal_those_of_python() -> None:
    cases = []
    for seed in range(200):
        case = random_case(20 * seed + seed % 2)
        if np.isfinite(case.logits.max()):
            count = min(case.logits.shape[1], (0, 1, 5, 300)[seed % 4])
            params = {"seed": seed, "repetition_penalty": 1.5, "logprobs": count}
            cases.append(Case(params, case.logits[:1], case.prompt))
    for case, found in zip(cases, sampled_in_cpp(cases), strict=True):
        token_id, *entries = (part.split(":") for part in found.removesuffix(";").split())
        row = case.logits[0]
        expected = row_logprobs(row, int(token_id[0]), case.params["logprobs"], None, "logits")
        assert [int(entry[0]) for entry in entries] == list(expected)
        assert [int(entry[1]) for entry in entries] == [one.rank for one in expected.values()]
        wanted = [one.logprob for one in expected.values()]
        assert [float(entry[2]) for entry in entries] == pytest.approx(wanted, abs=1e-5)


def wrong_params() -> Iterator[dict[str, Any]]:
    yield from ({"temperature": value} for value in (-1.0, 1e7, float("nan"), float("inf")))
    yield from ({"top_p": value} for value in (0.0, -0.5, 1.5, 1e-400))
    yield from ({"min_p": value} for value in (-0.1, 1.1))
    yield from ({"repetition_penalty": value} for value in (0.0, 1e-3, 100.5))
    yield from ({"presence_penalty": value} for value in (-2.1, 1e300))
    yield from ({"frequency_penalty": value} for value in (-2.5, 2.0000000001))
    yield from ({"n": value} for value in (0, -1, 1025))
    yield {"min_tokens": -1}
    yield {"min_tokens": 17}
    yield {"n": 2, "temperature": 0.0}
    yield {"n": 2, "temperature": 9e-6}
    yield {"top_k": -2, "n": 0, "logprobs": -1, "stop_token_ids": [3, -1]}
    yield {"n": 0, "temperature": 0.0, "min_tokens": 20, "max_tokens": 20, "top_p": 7.25}
    yield {"stop_token_ids": list(range(200)), "logprobs": 101, "min_tokens": 1}


def test_both_name_the_same_wrong_parameters() -> None:
    logits = np.zeros((1, 100), np.float32)
    cases = [Case(params, logits) for params in wrong_params()]
    for case, found in zip(cases, sampled_in_cpp(cases), strict=True):
        wanted = case.sampled_in_python()
        assert found.startswith("SamplingParams | ")
        assert re.findall(r"(\w+) is", found) == re.findall(r"(\w+) is", wanted), found
