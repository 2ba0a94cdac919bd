"""The other end-to-end tests can fail: each mistake visibly changes log-probabilities."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mutations import copy_bundle, edit_graph, edit_parameters, narrow_window
from numpy.typing import NDArray
from reference import linear_plan, logprob_deviation
from transformers import PreTrainedModel

from skipdec import ExitSchedule, Generator, SamplingParams
from skipdec.runtime.schedule.placements import PLACEMENTS
from skipdec.runtime.stitching.host.buffers import StepBuffers

Array = NDArray[Any]
PROMPTS = [np.random.default_rng(n).integers(4, 131, n).tolist() for n in (6, 1, 11)]
NUM_TOKENS = 12
VISIBLE = 1e-3  # fifty times the tolerance of the tests that compare with the reference


@pytest.fixture
def deviation(
    reference_model: Callable[[str], PreTrainedModel],
) -> Callable[[Path, str], float]:
    """Return the largest deviation of a chosen token's log-probability from the reference."""

    def measure(bundle: Path, structure: str) -> float:
        schedule = ExitSchedule(num_layers=6, max_exit_layer=5, min_exit_layer=3, horizon=8)
        params = SamplingParams(max_tokens=NUM_TOKENS, ignore_eos=True, seed=1, logprobs=0)
        with Generator.open(bundle, threads=1, schedule=schedule) as generator:
            outputs = [result.outputs[0] for result in generator.generate(PROMPTS, params)]
        model, plan = reference_model(structure), linear_plan(6, 5, 3, 1, 8)
        pairs = zip(PROMPTS, outputs, strict=True)
        return float(np.max([logprob_deviation(model, *pair, plan) for pair in pairs]))

    return measure


@pytest.mark.parametrize("structure", ["pre_norm", "post_norm", "no_bias", "untied", "llama"])
def test_an_unchanged_bundle_does_not_deviate(
    structure: str, exported: Callable[..., Path], deviation: Callable[[Path, str], float]
) -> None:
    assert deviation(exported(structure), structure) < VISIBLE / 50


def zeros(values: Array) -> tuple[Array]:
    return (np.zeros_like(values),)


def ones(values: Array) -> tuple[Array]:
    return (np.ones_like(values),)


def swap(first: Array, second: Array) -> tuple[Array, Array]:
    return second, first


def later_position(table: Array) -> tuple[Array]:
    """Shift rows down by one: position p reads the row of p - 1, like an offset of 1."""
    return (np.roll(table, 1, axis=0),)


def zero_third(third: int) -> Callable[[Array], tuple[Array]]:
    """Zero the query's (0), key's (1) or value's (2) share of a packed bias."""

    def edit(packed: Array) -> tuple[Array]:
        share = len(packed) // 3
        packed[third * share : (third + 1) * share] = 0
        return (packed,)

    return edit


def next_rate(frequencies: Array) -> tuple[Array]:
    return (np.roll(frequencies, 1),)


LAYER = "layer_004"  # runs for some generated tokens and not for others
OPT, PRE, LLAMA = ("pre_norm", "post_norm"), ("pre_norm",), ("llama",)
Edit = Callable[..., tuple[Array, ...]]
MISTAKES: dict[str, tuple[tuple[str, ...], str, tuple[str, ...], Edit]] = {
    "position offset": (OPT, "embed", ("embed_positions.weight",), later_position),
    "query bias dropped": (OPT, LAYER, ("self_attn.qkv_proj.bias",), zero_third(0)),
    "value bias dropped": ((*OPT, *LLAMA), LAYER, ("self_attn.qkv_proj.bias",), zero_third(2)),
    "output bias dropped": (OPT, LAYER, ("self_attn.out_proj.bias",), zeros),
    "fc1 bias dropped": (OPT, LAYER, ("fc1.bias",), zeros),
    "fc2 bias dropped": (OPT, LAYER, ("fc2.bias",), zeros),
    "attention norm weight dropped": (OPT, LAYER, ("self_attn_layer_norm.weight",), ones),
    "attention norm bias dropped": (OPT, LAYER, ("self_attn_layer_norm.bias",), zeros),
    "final norm weight dropped": (OPT, LAYER, ("final_layer_norm.weight",), ones),
    "final norm bias dropped": (OPT, LAYER, ("final_layer_norm.bias",), zeros),
    "norms swapped": (
        OPT,
        LAYER,
        ("self_attn_layer_norm.weight", "final_layer_norm.weight"),
        swap,
    ),
    "last norm weight dropped": (PRE, "head", ("final_layer_norm.weight",), ones),
    "last norm bias dropped": (PRE, "head", ("final_layer_norm.bias",), zeros),
    "rotation dropped": (LLAMA, LAYER, ("self_attn.inv_freq",), zeros),
    "rotation off by one rate": (LLAMA, LAYER, ("self_attn.inv_freq",), next_rate),
    "gate and up bias dropped": (LLAMA, LAYER, ("mlp.gate_up_proj.bias",), zeros),
    "norms of a llama swapped": (
        LLAMA,
        LAYER,
        ("input_layernorm.weight", "post_attention_layernorm.weight"),
        swap,
    ),
}


@pytest.mark.parametrize(
    ("mistake", "structure"),
    [(name, structure) for name, (structures, *_) in MISTAKES.items() for structure in structures],
)
def test_a_wrong_parameter_is_visible(
    mistake: str,
    structure: str,
    exported: Callable[..., Path],
    deviation: Callable[[Path, str], float],
    tmp_path: Path,
) -> None:
    _, engine, names, edit = MISTAKES[mistake]
    bundle = copy_bundle(exported(structure), tmp_path)
    edit_parameters(bundle, engine, names, edit)
    assert deviation(bundle, structure) > VISIBLE


def test_the_key_bias_alone_cancels_in_the_softmax(
    exported: Callable[..., Path], deviation: Callable[[Path, str], float], tmp_path: Path
) -> None:
    """The bias adds the same number to all scores of a query, so this mutation is invisible."""
    bundle = copy_bundle(exported("pre_norm"), tmp_path)
    edit_parameters(bundle, LAYER, ("self_attn.qkv_proj.bias",), zero_third(1))
    assert deviation(bundle, "pre_norm") < VISIBLE / 50


def test_a_wrong_mask_is_visible(
    exported: Callable[..., Path], deviation: Callable[[Path, str], float], tmp_path: Path
) -> None:
    bundle = copy_bundle(exported("pre_norm"), tmp_path)
    edit_graph(bundle, LAYER, narrow_window)
    assert deviation(bundle, "pre_norm") > VISIBLE


def test_a_length_off_by_one_is_visible(
    exported: Callable[..., Path],
    deviation: Callable[[Path, str], float],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each generated token overwrites the previous one in the cache."""
    set_rows = StepBuffers.set_rows

    def one_short(
        self: StepBuffers, starts: Sequence[int], counts: Sequence[int], *, is_split: bool
    ) -> None:
        set_rows(self, starts, counts, is_split=is_split)
        self.seqlens_k[: len(starts)] -= 1

    monkeypatch.setattr(StepBuffers, "set_rows", one_short)
    assert deviation(exported("pre_norm"), "pre_norm") > VISIBLE


def test_a_wrong_placement_is_visible(
    exported: Callable[..., Path],
    deviation: Callable[[Path, str], float],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(PLACEMENTS, "top", PLACEMENTS["bottom"])  # type: ignore[misc]
    assert deviation(exported("pre_norm"), "pre_norm") > VISIBLE
