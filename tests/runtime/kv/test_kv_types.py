"""Caches of four types work in batches, in copies for n > 1 and with retired layers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from skipdec.engines.kernels.library import find_library
from skipdec.engines.manifest import TensorRole
from skipdec.runtime.generator import Generator
from skipdec.runtime.tokens.sampling import SamplingParams

pytestmark = pytest.mark.skipif(find_library() is None, reason="the kernels were not compiled")

PROMPTS = [[5, 6, 7, 8, 9, 10, 11], [12, 13], [14, 15, 16, 17]]
SCHEDULE = "linear:max=3,min=2,horizon=6"
# Allowed difference of a token's log-probability from a float32 cache's: a wrong position changes
# it by 1, an activation's code that rounds the other way by 0.01.
TOLERANCES = {"float32": 0.0, "float16": 0.03, "bfloat16": 0.06, "int8": 0.06}


@pytest.fixture(scope="module", params=TOLERANCES)
def kv_dtype(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def path(exported: Callable[..., Path], kv_dtype: str) -> Path:
    return exported("pre_norm", quantize="int8", kernels="skipdec", kv_dtype=kv_dtype)


@pytest.fixture(scope="module")
def generator(path: Path) -> Iterator[Generator]:
    with Generator.open(path, schedule=SCHEDULE, threads=1) as generator:
        yield generator


def seeded(max_tokens: int, n: int = 1) -> SamplingParams:
    return SamplingParams(seed=1, temperature=0.7, max_tokens=max_tokens, n=n, ignore_eos=True)


def completions(generator: Generator, prompts: list[list[int]], params: object) -> list[object]:
    outputs = generator.generate(prompts, params)  # type: ignore[arg-type]
    return [[completion.token_ids for completion in output.outputs] for output in outputs]


def test_a_row_writes_the_same_text_alone(generator: Generator) -> None:
    """Rows that share a prompt are included; some move when others leave earlier."""
    params = [seeded(3), seeded(8, n=3), seeded(6)]
    together = completions(generator, PROMPTS, params)
    alone = [completions(generator, [p], q)[0] for p, q in zip(PROMPTS, params, strict=True)]
    assert together == alone


def test_scores_are_near_those_of_a_float32_cache(
    generator: Generator, exported: Callable[..., Path], kv_dtype: str
) -> None:
    exact = exported("pre_norm", quantize="int8", kernels="skipdec", kv_dtype="float32")
    with Generator.open(exact, schedule=SCHEDULE, threads=1) as reference:
        expected = reference.score([PROMPTS[0]], [[3, 30, 20, 10, 4, 17]])[0].logprobs
    scored = generator.score([PROMPTS[0]], [[3, 30, 20, 10, 4, 17]])[0].logprobs
    difference = np.abs(np.subtract(scored, expected)).max()
    assert difference <= TOLERANCES[kv_dtype]
    assert (difference > 0) == (kv_dtype != "float32")


def test_memory_is_planned_by_type(generator: Generator, kv_dtype: str) -> None:
    generator.generate([PROMPTS[0]], seeded(8))
    assert generator.kv_memory.peak == generator.kv_memory.planned
    key = generator.bundle.manifest.layers[0].tensor(TensorRole.PAST_KEY)
    assert key.dtype == kv_dtype
    assert key.shape[3] == generator.model.head_dim + (4 if kv_dtype == "int8" else 0)
