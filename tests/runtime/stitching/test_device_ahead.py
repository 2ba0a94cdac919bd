"""A device begins the next step before the host knows the last step's tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from device_generators import Exported, Open, device_of, on_cpu, on_onnxruntime
from random_requests import run_all

from skipdec import Generator, RequestOutput, SamplingParams
from skipdec.engines.backends import ort_cuda
from skipdec.runtime.scheduling.decoding import OrdinaryDecoding
from skipdec.runtime.stitching.device.choices import ComingChoice, Confidence, DeviceChoice
from skipdec.runtime.tokens.drawing import TokenDraw
from skipdec.runtime.tokens.logits import CandidateLogits
from skipdec.runtime.tokens.sampler import Sampler

PROMPTS = [[5, 6, 7], [8, 9], [10, 11, 12, 13]]
GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
SAMPLED = GREEDY.updated(temperature=0.7, top_p=0.9, seed=3)
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
    assert pending == [False, *[True] * 10, False]  # prompt, steps, and no step after the last


def test_no_step_is_wasted_where_rows_end_at_max_tokens(open_on_device: Open) -> None:
    generator = open_on_device()
    assert launches(generator, GREEDY) == GREEDY.max_tokens - 1


def test_a_row_that_stops_early_changes_no_other_row(
    open_on_device: Open, exported: Exported
) -> None:
    with on_cpu(exported, "pre_norm") as generator:
        unstopped = tokens(generator.generate(PROMPTS, GREEDY, schedule=FALLING))
    generator = open_on_device()
    for row, text in enumerate(unstopped):
        end = next(index for index in range(2, 12) if text[index] not in text[:index])
        params = [GREEDY] * len(PROMPTS)
        params[row] = GREEDY.updated(stop_token_ids=[text[end]])
        expected = [list(one) for one in unstopped]
        expected[row] = expected[row][: end + 1]
        found = generator.generate(PROMPTS, params, schedule=FALLING)
        assert [list(one) for one in tokens(found)] == expected
    alone = GREEDY.updated(stop_token_ids=[unstopped[0][3]])
    with generator.running_batch() as engine:
        number = engine.add(PROMPTS[0], alone, schedule=FALLING)
        run_all(engine)
        assert engine.take(number).outputs[0].finish_reason == "stop"


@pytest.mark.parametrize("schedule", ["full", FALLING])
def test_a_step_on_wrong_tokens_is_run_again(
    open_on_device: Open, monkeypatch: pytest.MonkeyPatch, schedule: str
) -> None:
    """Let the host choose another token than the device wherever the device's is odd."""
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


def test_rows_that_may_draw_any_token_run_no_step_ahead(open_on_device: Open) -> None:
    generator = open_on_device()
    sampled = GREEDY.updated(temperature=1.0, seed=3)
    assert launches(generator, sampled) == GREEDY.max_tokens - 1
    device = device_of(generator)
    for _ in generator.stream(PROMPTS[:1], sampled, schedule="full"):
        assert device.pending == 0


@pytest.fixture
def guessing(exported: Exported, tmp_path: Path) -> Iterator[Generator]:
    """Yield a generator on the device that can guess sampled tokens."""
    bundle, backend = on_onnxruntime(exported, tmp_path, "pre_norm")
    with Generator(bundle, backend) as generator:
        yield generator


def host_waits(generator: Generator, params: SamplingParams) -> float:
    """Return how often the host waits per step of a call whose steps are captured."""
    device = device_of(generator)
    for _ in range(2):
        before = Counter(device.counts)
        generator.generate(PROMPTS, params, schedule=FALLING)
    moved = device.counts - before
    return (moved["waits"] + moved["synchronize"]) / (params.max_tokens - 1)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"top_p": 1.0, "top_k": 40},
        {"top_p": 1.0, "min_p": 0.1},
        {"top_k": 100, "min_p": 0.2},
        {"logprobs": 2},
        {"temperature": 0, "top_p": 1.0, "logprobs": 2},
    ],
    ids=str,
)
def test_sampled_tokens_are_guessed_with_one_wait_per_step(
    guessing: Generator,
    exported: Exported,
    monkeypatch: pytest.MonkeyPatch,
    changes: dict[str, float],
) -> None:
    params = SAMPLED.updated(max_tokens=24, **changes)
    with on_cpu(exported, "pre_norm") as generator:
        expected = tokens(generator.generate(PROMPTS, params, schedule=FALLING))
    assert tokens(guessing.generate(PROMPTS, params, schedule=FALLING)) == expected
    steps = params.max_tokens - 1
    assert launches(guessing, params) == 2 * steps - 1  # a choice after each step but the last
    ends = 2 * len(PROMPTS)  # logits after prompts and after the last step
    assert host_waits(guessing, params) * steps <= steps + 1 + ends
    monkeypatch.setattr(Sampler, "is_guessable", False)
    decides = params.top_k == 40 or params.min_p > 0  # candidates suffice
    fetches = 0 if decides else len(PROMPTS)
    assert host_waits(guessing, params) >= 1 + fetches


def test_a_step_begins_while_the_host_draws(guessing: Generator) -> None:
    device = device_of(guessing)
    pending = [device.pending > 0 for _ in guessing.stream(PROMPTS[:1], SAMPLED, schedule="full")]
    assert pending[1:] == [*[True] * 10, False]


@pytest.mark.parametrize("schedule", ["full", FALLING])
def test_wrong_guesses_change_no_text_and_pause_guessing(
    guessing: Generator, monkeypatch: pytest.MonkeyPatch, schedule: str
) -> None:
    params = SAMPLED.updated(max_tokens=40)
    expected = tokens(guessing.generate(PROMPTS, params, schedule=schedule))
    enqueue, wrong_guesses = DeviceChoice.enqueue, 0

    def guess_wrongly(
        self: DeviceChoice, draws: Mapping[int, TokenDraw], logits: CandidateLogits
    ) -> ComingChoice:
        """Let the device draw with other random numbers than the host."""
        nonlocal wrong_guesses
        wrong_guesses += 1
        others = {place: draw._replace(low=draw.high) for place, draw in draws.items()}
        return enqueue(self, others, logits)

    monkeypatch.setattr(DeviceChoice, "enqueue", guess_wrongly)
    assert tokens(guessing.generate(PROMPTS, params, schedule=schedule)) == expected
    assert 0 < wrong_guesses < 12  # with pauses of 1, 3, 7, 15 steps


@pytest.mark.parametrize(
    ("others", "runs_ahead"),
    [
        ([GREEDY], True),
        ([GREEDY, SAMPLED.updated(top_k=5, logprobs=1)], True),
        ([SAMPLED.updated(repetition_penalty=1.3)], False),
        ([SAMPLED.updated(top_p=1.0)], False),
        ([GREEDY.updated(presence_penalty=0.5)], False),
    ],
    ids=str,
)
def test_a_batch_runs_ahead_if_all_of_its_rows_can(
    guessing: Generator, others: list[SamplingParams], runs_ahead: bool
) -> None:
    params = [SAMPLED, *others]
    expected = [
        tokens(guessing.generate([prompt], one, schedule=FALLING))
        for prompt, one in zip(PROMPTS, params, strict=False)
    ]
    device = device_of(guessing)
    for _ in range(2):
        before = Counter(device.counts)
        found = guessing.generate(PROMPTS[: len(params)], params, schedule=FALLING)
    assert [tokens([one]) for one in found] == expected
    steps = GREEDY.max_tokens - 1
    moved = device.counts - before
    assert moved["graph_launches"] == (2 * steps - 1 if runs_ahead else steps)


def test_guessing_starts_after_min_tokens(guessing: Generator) -> None:
    ends = SAMPLED.updated(min_tokens=6, stop_token_ids=[5, 6, 7])
    guessing.generate(PROMPTS[:1], ends, schedule="full")
    device = device_of(guessing)
    pending = [device.pending > 0 for _ in guessing.stream(PROMPTS[:1], ends, schedule="full")]
    assert pending[:6] == [False] * 6
    assert len(pending) > 7, "the text ended too early"
    assert any(pending[6:])


def test_a_device_without_a_choice_engine_waits_and_logs_why(
    guessing: Generator, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(ort_cuda, "choice_graph", lambda spec: b"no graph")
    device = device_of(guessing)
    for _ in guessing.stream(PROMPTS[:1], SAMPLED, schedule="full"):
        assert device.pending == 0
    (record,) = caplog.records
    assert "begin late: engine choice" in record.message


def test_wrong_guesses_double_a_pause_and_right_ones_end_it() -> None:
    confidence = Confidence()
    pauses = []
    for _ in range(7):
        confidence.learn(right=False)
        pauses.append(next(steps for steps in range(99) if confidence.may_guess()))
    assert pauses == [1, 3, 7, 15, 31, 31, 31]
    for _ in range(13):
        assert confidence.may_guess()
        confidence.learn(right=True)
    confidence.learn(right=False)
    assert [confidence.may_guess() for _ in range(3)] == [False, True, True]
