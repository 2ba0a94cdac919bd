"""Run random requests in a running batch and alone."""

from __future__ import annotations

import random
from dataclasses import dataclass

from skipdec import Generator, RunningBatch, SamplingParams
from skipdec.runtime.tokens.outputs import RequestOutput

SCHEDULES = (
    "full",
    "linear:max=5,min=2,horizon=12",
    "linear:max=4,min=2,horizon=5,prompt=decay",
    "constant:max=3,placement=unified",
    "linear:max=4,min=2,horizon=5,placement=bottom",
    None,
)


@dataclass(frozen=True)
class ArrivingRequest:
    prompt: list[int]
    params: SamplingParams
    schedule: str | None
    arrival: int  # the engine's step

    def alone(self, generator: Generator) -> RequestOutput:
        return generator.generate([self.prompt], self.params, schedule=self.schedule)[0]


def draw(seed: int, count: int, longest: int = 24) -> list[ArrivingRequest]:
    rng = random.Random(seed)
    wanted, arrival = [], 0
    for _ in range(count):
        arrival += rng.choice((0, 0, 1, 2, 9))
        n = rng.choice((1, 1, 1, 2, 3))
        params = SamplingParams(
            max_tokens=rng.choice((1, 2, 5, 9, 17)),
            n=n,
            seed=rng.randrange(1000),
            temperature=0.8 if n > 1 else rng.choice((0.0, 0.8)),
            ignore_eos=rng.random() < 0.7,
        )
        prompt = [rng.randrange(4, 90) for _ in range(rng.randrange(1, longest))]
        wanted.append(ArrivingRequest(prompt, params, rng.choice(SCHEDULES), arrival))
    return wanted


def together(
    generator: Generator,
    wanted: list[ArrivingRequest],
    *,
    max_prefill_tokens: int = 16,
    draft: str | None = None,
) -> list[RequestOutput]:
    numbers: list[int] = []
    to_come = list(wanted)
    with generator.running_batch(max_prefill_tokens=max_prefill_tokens, draft=draft) as engine:
        steps = 0
        while to_come or engine.is_busy:
            while to_come and to_come[0].arrival <= steps:
                one = to_come.pop(0)
                numbers.append(engine.add(one.prompt, one.params, schedule=one.schedule))
            engine.step()
            steps += 1
        stats = engine.stats()
        assert stats.submitted == stats.finished + stats.failed == len(wanted)
        assert stats.reserved_bytes == 0
        return [engine.take(number) for number in numbers]


def texts(output: RequestOutput) -> list[tuple[tuple[int, ...], tuple[int, ...], str | None]]:
    return [(one.token_ids, one.layers_per_token, one.finish_reason) for one in output.outputs]


def run_all(engine: RunningBatch) -> None:
    """Step until no request runs or waits."""
    while engine.is_busy:
        engine.step()
