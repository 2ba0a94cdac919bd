"""Layers stay bound to slots across calls, until the slots' memory is freed."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from skipdec import Generator, SamplingParams
from skipdec.engines.backends.session import EngineSession
from skipdec.engines.kernels.library import find_library
from skipdec.runtime.stitching.host.bindings import LayerBindings

PARAMS = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
SHORT, LONG = [5, 6, 7], list(range(5, 45))

pytestmark = pytest.mark.skipif(find_library() is None, reason="the kernels were not compiled")


@pytest.fixture
def generator(exported: Callable[..., Path]) -> Iterator[Generator]:
    bundle = exported("pre_norm", kernels="skipdec", quantize="int8")
    with Generator.open(bundle, threads=1, max_batch_size=2, draft="own,adapt=no") as generator:
        yield generator


def text(generator: Generator, prompt: list[int], draft: str) -> tuple[int, ...]:
    return generator.generate([prompt], PARAMS, draft=draft)[0].outputs[0].token_ids


def num_bound() -> int:
    return sum(len(one) for one in gc.get_objects() if isinstance(one, LayerBindings))


@pytest.mark.parametrize("draft", ["off", "own,adapt=no"])
def test_a_repeated_call_binds_only_its_prompts(
    generator: Generator, monkeypatch: pytest.MonkeyPatch, draft: str
) -> None:
    for _ in range(2):
        before = [text(generator, prompt, draft) for prompt in (SHORT, LONG)]
    bind, bound = EngineSession.bind, []
    monkeypatch.setattr(EngineSession, "bind", lambda *given: bound.append(0) or bind(*given))
    assert [text(generator, prompt, draft) for prompt in (SHORT, LONG)] == before
    assert len(bound) == 2 * (generator.model.num_layers + 2), "each engine once per prompt"


def test_freed_memory_leaves_no_binding(generator: Generator) -> None:
    drafts = ("off", "own,adapt=no")
    before = [text(generator, prompt, draft) for prompt in (SHORT, LONG) for draft in drafts]
    assert num_bound() > 0
    generator.trim()
    assert num_bound() == 0
    again = [text(generator, prompt, draft) for prompt in (SHORT, LONG) for draft in drafts]
    assert again == before
