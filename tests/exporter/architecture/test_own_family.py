"""Add a model family in one file and one registry line, and take it all the way."""

from __future__ import annotations

from pathlib import Path

import pytest
from registration import new_file
from toy_family import CONFIG, Toy, ToyModel, write_toy

from skipdec.engines.bundle import EngineBundle
from skipdec.engines.kernels.library import find_library
from skipdec.engines.manifest import TensorRole
from skipdec.exporter.architecture.architecture import (
    ARCHITECTURES,
)
from skipdec.exporter.config import ExportConfig
from skipdec.exporter.pipeline.exporting import export
from skipdec.runtime.generator import Generator
from skipdec.runtime.schedule import ExitSchedule
from skipdec.runtime.schedule.text import parse_schedule
from skipdec.runtime.tokens.sampling import SamplingParams

PROMPTS = [[3, 14, 15, 92, 65, 35], [89], [79, 32, 38]]
GENERATED = 9
SCHEDULES = [
    "full",
    "linear:max=4,min=2,warmup=1,horizon=5",
    "linear:max=3,min=2,warmup=1,horizon=4,prompt=decay",
]
needs_kernels = pytest.mark.skipif(find_library() is None, reason="the kernels were not compiled")


@pytest.fixture(autouse=True)
def added(monkeypatch: pytest.MonkeyPatch, verified_here: None) -> None:
    """Register the family here; a separate process would know only the registry's own lines."""
    monkeypatch.setitem(ARCHITECTURES, "toy", new_file(monkeypatch, "a_new_family", Toy()))


def greedy(model: ToyModel, prompt: list[int], schedule: ExitSchedule) -> list[int]:
    """Generate tokens with the reference, each at its depth, recomputing everything each time."""
    layers = range(schedule.num_layers)
    prefixes = [schedule.prompt_prefix(layer, len(prompt)) for layer in layers]
    sets = [[layer for layer in layers if at < prefixes[layer]] for at in range(len(prompt))]
    tokens = list(prompt)
    for index in range(GENERATED):
        tokens.append(int(model.logits(tokens, sets)[-1].argmax()))
        sets.append(list(schedule.plan(index).layers))
    return tokens[len(prompt) :]


@pytest.mark.parametrize("quantize", ["none", "int8"])
@pytest.mark.parametrize("rope_theta", [100.0, None])
def test_an_added_family_is_exported_verified_and_decoded_with_skipping(
    rope_theta: float | None, quantize: str, tmp_path: Path
) -> None:
    model = write_toy(tmp_path / "toy", rope_theta=rope_theta)
    config = ExportConfig(
        model=str(tmp_path / "toy"), output=tmp_path / "toy.skipdec", quantize=quantize
    )
    report = export(config)
    assert report.verification is not None
    assert report.verification.tokens is not None
    bundle = EngineBundle.open(report.output)
    spec, layer = bundle.manifest.model, bundle.manifest.layers[0]
    assert (spec.family, spec.num_heads, spec.num_kv_heads, spec.head_dim) == ("toy", 4, 2, 16)
    assert layer.tensor(TensorRole.PAST_KEY).shape == ("B", 2, "T", 16)
    assert (TensorRole.POSITION_IDS in layer.roles) == (rope_theta is not None)
    if quantize != "none":
        return
    params = SamplingParams(temperature=0, max_tokens=GENERATED, ignore_eos=True)
    for text in SCHEDULES:
        schedule = parse_schedule(text, num_layers=CONFIG["layers"])
        expected = [greedy(model, prompt, schedule) for prompt in PROMPTS]
        for options in ({"threads": 1}, {"device": "rehearsal"}):
            with Generator.open(bundle.path, **options) as generator:
                outputs = generator.generate(PROMPTS, params, schedule=schedule)
            assert [list(output.outputs[0].token_ids) for output in outputs] == expected


@needs_kernels
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_rows_of_a_16_bit_table_may_be_an_engine_output(dtype: str, tmp_path: Path) -> None:
    """The toy's embed engine is one Gather whose output is the graph's."""
    write_toy(tmp_path / "toy")
    config = ExportConfig(model=str(tmp_path / "toy"), output=tmp_path / "narrow", dtype=dtype)
    report = export(config)
    assert report.verification is not None
    assert report.verification.tokens is not None
