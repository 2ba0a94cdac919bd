"""Compare a calibration's ranges, errors and losses with plain torch; bound its memory."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from calibrations import SCHEDULES, literal_inputs, literal_loss, plan_of
from fixture_types import Checkpoints
from recorded_events import RecordedEvents
from torch import nn
from transformers import OPTForCausalLM

from skipdec.calib.calibration import calibration
from skipdec.calib.calibration.calibration import run_calibration
from skipdec.calib.layerwise import run as layerwise_run
from skipdec.calib.layerwise.engines import round_to_fp8, round_to_int8
from skipdec.calib.layerwise.texts import HiddenStates
from skipdec.engines.errors import CheckpointError
from skipdec.engines.host.events import Events
from skipdec.engines.manifest import EngineKind, PrecisionSpec
from skipdec.exporter.quantization.linear import weight_quantizer

Reference = Callable[[str], OPTForCausalLM]

SKIPPING = SCHEDULES[1]
PRECISIONS = [
    PrecisionSpec(quantize="int8", head_quantize="int8", activation_ranges="0" * 64),
    PrecisionSpec(quantize="fp8", head_quantize="fp8", activation_ranges="0" * 64),
]


@pytest.mark.parametrize(
    "structure", ["pre_norm", "post_norm", "no_bias", "untied", "llama", "qwen3"]
)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_ranges_equal_those_of_a_literal_forward_pass(
    schedule: str, structure: str, checkpoint: Checkpoints, reference_model: Reference
) -> None:
    plan = plan_of(checkpoint(structure), schedule)
    report = run_calibration(plan, Events())
    literal = literal_inputs(reference_model(structure), plan.observed, plan.schedule)
    assert {(each.engine, each.weight) for each in report.products} == literal.keys()
    for product in report.products:
        rows = literal[product.engine, product.weight]
        assert product.tokens == len(rows)
        assert product.maximum == pytest.approx(float(rows.abs().max()), rel=1e-4)
        assert product.range == product.maximum


def test_positions_that_skip_a_layer_do_not_count(checkpoint: Checkpoints) -> None:
    reports = [
        run_calibration(plan_of(checkpoint("pre_norm"), schedule), Events())
        for schedule in ("full", SKIPPING)
    ]
    full, skipping = ({p.engine: p.tokens for p in report.products} for report in reports)
    assert set(full.values()) == {6 + 1 + 17 + 4 + 11 + 8 + 3, 12 + 9 + 4 + 1}
    # Layer 1 runs only prompts, layer 5 everything.
    assert (skipping["layer_001"], skipping["layer_005"]) == (6 + 1 + 17 + 4, full["layer_005"])


def test_ranges_pass_the_exporters_check(checkpoint: Checkpoints) -> None:
    plan = plan_of(checkpoint("pre_norm"))
    ranges = run_calibration(plan, Events()).ranges
    for precision in PRECISIONS:
        ranges.check(plan.model, precision, "ranges.json")
    assert type(ranges).from_json(ranges.model_dump_json(), "ranges.json") == ranges


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_losses_equal_plain_torch(
    schedule: str, checkpoint: Checkpoints, reference_model: Reference
) -> None:
    plan = plan_of(checkpoint("pre_norm"), schedule)
    report = run_calibration(plan, Events())
    model = reference_model("pre_norm")
    assert report.loss.float32 == pytest.approx(
        literal_loss(model, plan.held_out, plan.schedule), rel=1e-5
    )


@pytest.mark.parametrize(("name", "precision"), [("int8", PRECISIONS[0]), ("fp8", PRECISIONS[1])])
def test_static_losses_equal_a_model_with_rounded_products(
    name: Any,  # noqa: ANN401
    precision: PrecisionSpec,
    checkpoint: Checkpoints,
) -> None:
    """Reference: Hugging Face's untied model, its weights and inputs rounded with numpy only."""
    plan = plan_of(checkpoint("untied"), SKIPPING)
    report = run_calibration(plan, Events())
    model = OPTForCausalLM.from_pretrained(checkpoint("untied")).eval()
    round_products(model, report.ranges.model_dump(), name, precision)
    expected = literal_loss(model, plan.held_out, plan.schedule)
    assert expected != pytest.approx(report.loss.float32, rel=1e-4)
    assert report.loss.static[name] == pytest.approx(expected, rel=2e-3)


def round_products(
    model: OPTForCausalLM, ranges: dict[str, Any], name: str, precision: PrecisionSpec
) -> None:
    quantizer = weight_quantizer(EngineKind.LAYER, precision)
    assert quantizer is not None
    attention = [f"self_attn.{which}_proj" for which in "qkv"]
    paths = {
        **dict.fromkeys(attention, "self_attn.qkv_proj.weight"),
        **{path: f"{path}.weight" for path in ("self_attn.out_proj", "fc1", "fc2")},
    }
    for index, layer in enumerate(model.model.decoder.layers):
        modules = [layer.get_submodule(path) for path in attention]
        # fp8 has one scale for the packed weight
        packed = quantizer.dequantized(np.concatenate([weight_of(m) for m in modules]).T)
        for module, part in zip(modules, np.split(packed.T, 3), strict=True):
            module.weight.data = torch.from_numpy(part.copy())
        for path in ("self_attn.out_proj", "fc1", "fc2"):
            module = layer.get_submodule(path)
            module.weight.data = torch.from_numpy(quantizer.dequantized(weight_of(module).T).T)
        for path, weight in paths.items():
            round_input(
                layer.get_submodule(path), ranges["layers"][f"layer_{index:03d}"][weight], name
            )
    head = model.lm_head
    head.weight.data = torch.from_numpy(quantizer.dequantized(weight_of(head).T).T)
    round_input(head, ranges["head"]["lm_head.weight"], name)


def weight_of(module: nn.Module) -> Any:  # noqa: ANN401
    return module.weight.detach().numpy()


def round_input(module: nn.Module, largest: float, name: str) -> None:
    def hook(_: nn.Module, inputs: tuple[torch.Tensor]) -> torch.Tensor:
        values = inputs[0].numpy()
        if name == "int8":
            codes = np.rint(values / (largest / 127)).clip(-128, 127)
            return torch.from_numpy((codes * (largest / 127)).astype(np.float32))
        codes = (values / (largest / 448)).clip(-448, 448).astype(ml_dtypes.float8_e4m3fn)
        return torch.from_numpy(codes.astype(np.float32) * np.float32(largest / 448))

    module.register_forward_pre_hook(hook)


def test_rounding_clips_at_the_range() -> None:
    values = torch.tensor([0.014, -2.0, 0.5, 2.0])
    torch.testing.assert_close(round_to_int8(values, 1.27), torch.tensor([0.01, -1.28, 0.5, 1.27]))
    assert round_to_fp8(torch.tensor([500.0, -1e6, 17.0, 0.0]), 448.0).tolist() == [
        448.0,
        -448.0,
        16.0,
        0.0,
    ]


def test_only_one_engine_is_in_memory_at_a_time(
    checkpoint: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[weakref.ref[nn.Module]] = []
    alive: list[int] = []
    load = calibration.load_engine

    def count(*arguments: Any) -> nn.Module:  # noqa: ANN401
        alive.append(sum(reference() is not None for reference in loaded))
        module = load(*arguments)
        loaded.append(weakref.ref(module))
        return module

    for module in (calibration, layerwise_run):
        monkeypatch.setattr(module, "load_engine", count)
    events = RecordedEvents()
    run_calibration(plan_of(checkpoint("pre_norm")), events)
    assert alive == [0] * 8
    assert events.done["calibrating"] == [*(f"layer_{index:03d}" for index in range(6)), "head"]


def test_layers_run_batches_of_whole_texts_within_the_limit(
    checkpoint: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_of(checkpoint("pre_norm"), batch_tokens=24)
    seen: list[list[int]] = []
    read = HiddenStates.read

    def record(states: HiddenStates, index: int | None, engine: nn.Module) -> None:
        if index is not None:
            seen.append([len(batch.rows) for batch in states.texts.batches(index)])
        read(states, index, engine)

    monkeypatch.setattr(HiddenStates, "read", record)
    run_calibration(plan, Events())
    assert seen == [[17, 9, 20 + 4]] * 6


def test_an_infinite_activation_names_its_product(
    checkpoint: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_of(checkpoint("pre_norm"))
    reader = plan.checkpoint.reader
    read_rows = reader.read_rows

    def break_one(name: str, start: int, stop: int) -> Any:  # noqa: ANN401
        rows = read_rows(name, start, stop)
        if name == "decoder.layers.3.fc1.bias":
            rows = rows.copy()
            rows[5] = np.inf
        return rows

    monkeypatch.setattr(reader, "read_rows", break_one)
    with pytest.raises(CheckpointError, match=r"layer_003 \| the input of fc2.weight is NaN"):
        run_calibration(plan, Events())
