"""Texts on a device equal the CPU's, except at ties, for every structure of OPT."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from compared_tokens import compare_tokens
from device_generators import Exported
from machine_devices import DEVICES, TOLERANCES, open_on
from tiny_models import STRUCTURES

from skipdec import Generator, SamplingParams
from skipdec.runtime.tokens.outputs import CompletionOutput, Logprob

SCHEDULES = ("full", "linear:max=5,min=2,horizon=6", "constant:max=3,placement=unified")
PARAMS = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)


def _prompts() -> list[list[int]]:
    chance = random.Random(3)
    return [[chance.randrange(4, 90) for _ in range(chance.randint(1, 24))] for _ in range(12)]


def _texts(generator: Generator, logprobs: int | None) -> list[CompletionOutput]:
    params = PARAMS.updated(logprobs=logprobs)
    return [
        output.outputs[0]
        for schedule in SCHEDULES
        for output in generator.generate(_prompts(), params, schedule=schedule)
    ]


@DEVICES
@pytest.mark.parametrize(
    ("structure", "dtype"),
    [*((structure, "float16") for structure in STRUCTURES), ("untied", "float32")],
)
def test_tokens_equal_the_cpus(
    exported: Exported,
    record_property: Callable[[str, object], None],
    structure: str,
    dtype: str,
    device: str,
) -> None:
    """Choose from candidates and from all logits, whose log-probabilities are close."""
    bundle = exported(structure, dtype=dtype)
    with open_on(bundle, device, max_batch_size=4) as generator:
        found, scored = _texts(generator, None), _texts(generator, 2)
    with Generator.open(bundle, threads=1, max_batch_size=4) as generator:
        expected = _texts(generator, 2)
    tolerance = TOLERANCES[dtype]
    for texts in (found, scored):
        comparison = compare_tokens(texts, expected, tolerance)
        assert not comparison.diverged, "\n".join(comparison.diverged)
    differences = [
        abs(
            one.logprobs[0][one.token_ids[0]].logprob
            - other.logprobs[0][other.token_ids[0]].logprob
        )
        for one, other in zip(scored, expected, strict=True)
        if one.logprobs and other.logprobs and one.token_ids[0] == other.token_ids[0]
    ]
    record_property("equal", comparison.equal)
    record_property("ties", comparison.ties)
    record_property("log-probabilities differ by", f"{max(differences):.2g}")
    assert max(differences) <= tolerance


def _completion(tokens: tuple[int, ...], lead: float = 1.0) -> CompletionOutput:
    """Return a text whose last token leads by ``lead``, the others by 1."""
    leads = [1.0] * (len(tokens) - 1) + [lead]
    logprobs = tuple({1: Logprob(-0.5), 2: Logprob(-0.5 - each)} for each in leads)
    return CompletionOutput(0, "", tokens, None, logprobs, "length", layers_per_token=(2, 2))


@pytest.mark.parametrize(
    ("found", "lead", "counts"),
    [
        ((5, 6), 1.0, (1, 0, 0)),
        ((5, 7), 0.01, (0, 1, 0)),
        ((5, 7), 0.3, (0, 0, 1)),
        ((4, 6), 0.01, (0, 0, 1)),
        ((5,), 0.01, (0, 0, 1)),
    ],
)
def test_only_a_tie_excuses_another_token(
    found: tuple[int, ...], lead: float, counts: tuple[int, int, int]
) -> None:
    comparison = compare_tokens([_completion(found)], [_completion((5, 6), lead)], 0.05)
    assert (comparison.equal, comparison.ties, len(comparison.diverged)) == counts
