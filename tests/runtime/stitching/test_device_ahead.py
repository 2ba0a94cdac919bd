"""A device begins the next step before the host knows the tokens of the last one."""

from __future__ import annotations

from collections import Counter

import pytest
from device_generators import Exported, Open, device_of, on_cpu
from random_requests import run_all

from skipdec import Generator, RequestOutput, SamplingParams
from skipdec.runtime.scheduling.decoding import OrdinaryDecoding
from skipdec.runtime.tokens.sampler import Sampler

PROMPTS = [[5, 6, 7], [8, 9], [10, 11, 12, 13]]
GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
FALLING = "linear:max=5,min=2,horizon=6"


def tokens(outputs: list[RequestOutput]) -> list[tuple[int, ...]]:
    return [completion.token_ids for output in outputs for completion in output.outputs]


def launches(generator: Generator, params: SamplingParams) -> int:
    """Return how many graphs a call launches once all of its steps are captured."""
    for _ in range(2):
        before = Counter(device_of(generator).counts)
        generator.generate(PROMPTS, params, schedule=FALLING)
    return (device_of(generator).counts - before)["graph_launches"]


def test_the_next_step_is_enqueued_while_the_host_takes_tokens(open_on_device: Open) -> None:
    generator = open_on_device()
    device = device_of(generator)
    device.synchronize()
    pending = []
    for _ in generator.stream(PROMPTS[:1], GREEDY, schedule="full"):
        pending.append(device.pending > 0)
    assert pending == [False, *[True] * 10, False]  # prompt, steps, and nothing behind the last


def test_no_step_is_begun_in_vain_where_rows_end_by_their_lengths(open_on_device: Open) -> None:
    generator = open_on_device()
    assert launches(generator, GREEDY) == GREEDY.max_tokens - 1


def test_a_row_that_stops_early_costs_one_step_and_no_other_rows_tokens(
    open_on_device: Open, exported: Exported
) -> None:
    with on_cpu(exported, "pre_norm") as generator:
        whole = tokens(generator.generate(PROMPTS, GREEDY, schedule=FALLING))
    generator = open_on_device()
    for row, text in enumerate(whole):
        end = next(index for index in range(2, 12) if text[index] not in text[:index])
        params = [GREEDY] * len(PROMPTS)
        params[row] = GREEDY.updated(stop_token_ids=[text[end]])
        expected = [list(one) for one in whole]
        expected[row] = expected[row][: end + 1]
        found = generator.generate(PROMPTS, params, schedule=FALLING)
        assert [list(one) for one in tokens(found)] == expected
    alone = GREEDY.updated(stop_token_ids=[whole[0][3]])
    with generator.running_batch() as engine:
        number = engine.add(PROMPTS[0], alone, schedule=FALLING)
        run_all(engine)
        assert engine.take(number).outputs[0].finish_reason == "stop"


@pytest.mark.parametrize("schedule", ["full", FALLING])
def test_a_step_on_other_tokens_than_the_hosts_is_run_again(
    open_on_device: Open, monkeypatch: pytest.MonkeyPatch, schedule: str
) -> None:
    """As if the host took another token than the device behind every odd one."""
    take_best = Sampler.take_best
    monkeypatch.setattr(
        Sampler,
        "take_best",
        lambda self, token_id: take_best(self, token_id - 1 if token_id % 2 else token_id),
    )
    generator = open_on_device()
    found = tokens(generator.generate(PROMPTS, GREEDY, schedule=schedule))
    monkeypatch.setattr(OrdinaryDecoding, "ahead", lambda self, rows: [])
    assert tokens(generator.generate(PROMPTS, GREEDY, schedule=schedule)) == found


def test_rows_that_draw_by_chance_run_no_step_ahead(open_on_device: Open) -> None:
    generator = open_on_device()
    sampled = GREEDY.updated(temperature=1.0, seed=3)
    assert launches(generator, sampled) == GREEDY.max_tokens - 1
    device = device_of(generator)
    for _ in generator.stream(PROMPTS[:1], sampled, schedule="full"):
        assert device.pending == 0
