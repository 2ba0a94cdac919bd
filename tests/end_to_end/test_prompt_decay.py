"""prompt=decay matches the literal reference and runs only the tokens that need it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from reference import chosen_logprobs, decaying_prompt, linear_plan, logprob_deviation
from tiny_models import EVERY_STRUCTURE
from transformers import PreTrainedModel

from skipdec import CompletionOutput, ExitSchedule, Generator, SamplingParams
from skipdec.engines.backends.session import Binding, EngineSession
from skipdec.engines.manifest import TensorRole
from skipdec.engines.memory import Array
from skipdec.runtime.stitching.host import stitcher as host_stitcher

NUM_TOKENS = 8
PROMPTS = [np.random.default_rng(n).integers(4, 131, n).tolist() for n in (6, 1, 13, 2, 9)]
# maximum, minimum, warm-up, horizon, placement
SCHEDULES = {
    "top": (3, 2, 1, 4, "top"),
    "two-warm-up-layers": (4, 3, 2, 6, "top"),
    "no-warm-up": (2, 1, 0, 3, "top"),
    "early-termination": (3, 1, 0, 6, "bottom"),
    "shallow-from-the-start": (2, 2, 1, 1, "top"),
}


def schedule_of(name: str, prompt: str = "decay") -> ExitSchedule:
    maximum, minimum, warmup, horizon, placement = SCHEDULES[name]
    return ExitSchedule(
        num_layers=6,
        max_exit_layer=maximum,
        min_exit_layer=minimum,
        warmup_layers=warmup,
        horizon=horizon,
        placement=placement,
        prompt=prompt,
    )


def deviation_of(
    model: PreTrainedModel, name: str, prompt: list[int], output: CompletionOutput
) -> float:
    maximum, _, warmup, _, placement = SCHEDULES[name]
    # With a horizon of two, the first token can have any budget.
    prompt_plan = decaying_prompt(
        6, maximum, lambda budget: linear_plan(6, budget, budget, warmup, 2, placement)(0)
    )
    return logprob_deviation(model, prompt, output, linear_plan(6, *SCHEDULES[name]), prompt_plan)


@pytest.mark.parametrize("max_batch_size", [1, 8])
@pytest.mark.parametrize("name", SCHEDULES)
def test_log_probabilities_and_depths_equal_the_reference(
    name: str,
    max_batch_size: int,
    exported: Callable[..., Path],
    reference_model: Callable[[str], PreTrainedModel],
) -> None:
    schedule, model = schedule_of(name), reference_model("untied")
    params = SamplingParams(max_tokens=NUM_TOKENS, ignore_eos=True, seed=3, logprobs=0)
    bundle = exported("untied")
    with Generator.open(bundle, threads=1, max_batch_size=max_batch_size) as generator:
        results = generator.generate(PROMPTS, params, schedule=schedule)
    for prompt, result in zip(PROMPTS, results, strict=True):
        output = result.outputs[0]
        first = 6 if len(prompt) == 1 else schedule.max_exit_layer
        budgets = [schedule.budget(index) for index in range(NUM_TOKENS - 1)]
        assert output.layers_per_token == (first, *budgets)
        assert deviation_of(model, name, prompt, output) <= 2e-5


@pytest.mark.parametrize("structure", EVERY_STRUCTURE)
def test_every_structure_equals_the_reference_with_prompt_decay(
    structure: str,
    exported: Callable[..., Path],
    reference_model: Callable[[str], PreTrainedModel],
) -> None:
    params = SamplingParams(n=2, max_tokens=4, ignore_eos=True, seed=4, logprobs=0)
    with Generator.open(exported(structure), threads=1) as generator:
        results = generator.generate(PROMPTS[:3], params, schedule=schedule_of("top"))
    for prompt, result in zip(PROMPTS, results, strict=False):
        for output in result.outputs:
            assert deviation_of(reference_model(structure), "top", prompt, output) <= 2e-5


@pytest.mark.parametrize("quantize", ["none", "int8"])
@pytest.mark.parametrize("name", SCHEDULES)
def test_teacher_forcing_equals_decoding_step_by_step(
    name: str, quantize: str, exported: Callable[..., Path]
) -> None:
    """Attention of int8 is float32, so activations near a tie occasionally round differently."""
    differences = []
    schedule = schedule_of(name)
    params = SamplingParams(max_tokens=NUM_TOKENS, ignore_eos=True, seed=5, logprobs=0)
    with Generator.open(exported("pre_norm", quantize=quantize), threads=1) as generator:
        for result in generator.generate(PROMPTS, params, schedule=schedule):
            output = result.outputs[0]
            (scored,) = generator.score(
                [result.prompt_token_ids], [output.token_ids], schedule=schedule
            )
            differences.append(np.subtract(scored.logprobs, chosen_logprobs(output)))
            assert scored.layers_per_token == output.layers_per_token
    close = np.abs(differences) < 2e-5  # [rows, tokens]
    assert close.all() if quantize == "none" else close.mean() > 0.9
    assert np.abs(differences).max() < 0.05


def test_a_single_token_equals_a_longer_texts_first_token(
    exported: Callable[..., Path],
) -> None:
    params = SamplingParams(max_tokens=1, temperature=0, logprobs=0)
    longer = SamplingParams(max_tokens=3, temperature=0, logprobs=0, ignore_eos=True)
    with Generator.open(exported("pre_norm"), threads=1) as generator:
        once = generator.generate(PROMPTS, params, schedule=schedule_of("top"))
        more = generator.generate(PROMPTS, longer, schedule=schedule_of("top"))
    for one, other in zip(once, more, strict=True):
        first, second = (chosen_logprobs(result.outputs[0])[0] for result in (one, other))
        assert first == pytest.approx(second, abs=1e-6)
        assert one.outputs[0].layers_per_token == other.outputs[0].layers_per_token[:1]


def test_prompt_decay_changes_log_probabilities(exported: Callable[..., Path]) -> None:
    with Generator.open(exported("pre_norm"), threads=1) as generator:
        decayed, full = (
            generator.score([PROMPTS[2]], [[7]], schedule=schedule_of("top", prompt))[0]
            for prompt in ("decay", "full")
        )
    assert abs(decayed.logprobs[0] - full.logprobs[0]) > 1e-3


def write_back_beyond_a_rows_prefix(monkeypatch: pytest.MonkeyPatch) -> None:
    """Return rows cut at the group's longest prefix, but write back every computed value."""
    run_prefixes = host_stitcher.run_prefixes

    def surplus(session, hidden, key, value, active, start) -> None:  # noqa: ANN001
        run_prefixes(session, hidden, key, value, np.full_like(active, active.max()), start)

    monkeypatch.setattr(host_stitcher, "run_prefixes", surplus)


def one_prompt_token_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    prompt_prefix = ExitSchedule.prompt_prefix
    monkeypatch.setattr(
        ExitSchedule,
        "prompt_prefix",
        lambda self, layer, length: min(length, prompt_prefix(self, layer, length) + 1),
    )


@pytest.mark.parametrize("mistake", [write_back_beyond_a_rows_prefix, one_prompt_token_too_many])
def test_a_wrong_prefix_is_visible(
    mistake: Callable[[pytest.MonkeyPatch], None],
    exported: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    params = SamplingParams(max_tokens=1, temperature=0, logprobs=0)
    with Generator.open(exported("pre_norm"), threads=1) as generator:
        right = generator.generate(PROMPTS, params, schedule=schedule_of("top"))
        mistake(monkeypatch)
        wrong = generator.generate(PROMPTS, params, schedule=schedule_of("top"))
    pairs = zip(right, wrong, strict=True)
    deviations = [
        abs(chosen_logprobs(one.outputs[0])[0] - chosen_logprobs(other.outputs[0])[0])
        for one, other in pairs
    ]
    assert max(deviations) > 1e-3


def test_each_layer_runs_exactly_the_groups_longest_prefix(
    exported: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths: dict[str, list[int]] = defaultdict(list)
    bind = EngineSession.bind

    def noting_bind(session: EngineSession, tensors: Mapping[TensorRole, Array]) -> Binding:
        if TensorRole.PAST_KEY in tensors:
            lengths[session.spec.name].append(tensors[TensorRole.HIDDEN_STATES].shape[1])
        return bind(session, tensors)

    with Generator.open(exported("pre_norm"), threads=1) as generator:
        monkeypatch.setattr(EngineSession, "bind", noting_bind)
        params = SamplingParams(max_tokens=1, temperature=0)
        generator.generate([[5] * 10, [6] * 4], params, schedule=schedule_of("top"))
    # 6 layers to 3 over ten tokens: 6 6 5 5 5 4 4 4 3 3, of which layers 1, 2 and 3 run a share
    assert {name: list(found) for name, found in lengths.items()} == {
        "layer_000": [10],
        "layer_001": [2],
        "layer_002": [5],
        "layer_003": [8],
        "layer_004": [10],
        "layer_005": [10],
    }
