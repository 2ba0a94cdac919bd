"""Many clients of engines on a device, here of host memory: their texts are the CPU's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from skipdec import CapacityError, Generator, SamplingParams
from skipdec.runtime.serving.async_engine import AsyncEngine

PROMPTS = [[5, 6, 7], [8, 9], [10, 11, 12, 13], [5, 9]]
SCHEDULES = ("full", "linear:max=5,min=2,horizon=12", "constant:max=3", None)
PARAMS = SamplingParams(temperature=0.8, seed=3, max_tokens=9, ignore_eos=True)


def test_clients_of_an_engine_get_the_cpus_texts(exported: Callable[..., Path]) -> None:
    bundle = exported("pre_norm", quantize="int8", kernels="auto")

    async def main() -> list[tuple[int, ...]]:
        async with AsyncEngine.open(
            bundle, device="rehearsal", max_batch_size=3, max_model_len=40
        ) as engine:
            with pytest.raises(CapacityError, match="max_model_len allows 40"):
                engine.submit([5, 6], SamplingParams(max_tokens=39))
            calls = [
                engine.generate(prompt, PARAMS, schedule=schedule)
                for prompt, schedule in zip(PROMPTS, SCHEDULES, strict=True)
            ]
            return [output.outputs[0].token_ids for output in await asyncio.gather(*calls)]

    with Generator.open(bundle, threads=1) as generator:
        expected = [
            generator.generate([prompt], PARAMS, schedule=schedule)[0].outputs[0].token_ids
            for prompt, schedule in zip(PROMPTS, SCHEDULES, strict=True)
        ]
    assert asyncio.run(main()) == expected
