"""The tuned example writes sensible text at every depth of its tuning."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from skipdec import Generator, SamplingParams
from skipdec.exporter.config import ExportConfig
from skipdec.exporter.pipeline.exporting import export

EXAMPLES = Path(__file__).parents[2] / "examples"
PROMPT = "name[Blue Spice], eatType[coffee shop], area[city centre]"


@pytest.fixture(scope="module")
def generator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Generator]:
    output = tmp_path_factory.mktemp("example") / "restaurants"
    export(ExportConfig(model=str(EXAMPLES / "restaurants"), output=output, verify=False))
    with Generator.open(output, threads=1) as generator:
        yield generator


@pytest.mark.parametrize(("schedule", "depth"), [("full", 12), ("2x", 9), ("4x", 5)])
def test_a_tuned_model_writes_text_at_each_of_its_schedules(
    generator: Generator, schedule: str, depth: float
) -> None:
    params = SamplingParams(temperature=0, max_tokens=60)
    (request,) = generator.generate([PROMPT], params, schedule=schedule)
    completion = request.outputs[0]
    assert completion.finish_reason == "stop"
    for part in ("Blue Spice", "coffee shop", "city centre"):
        assert part in completion.text
    generated = completion.layers_per_token[1:]
    mean = sum(generated) / len(generated)
    assert mean == depth if schedule == "full" else mean <= depth


def test_the_example_is_small_and_prompts_have_two_references() -> None:
    assert (EXAMPLES / "restaurants" / "model.safetensors").stat().st_size < 5_000_000
    lines = [json.loads(line) for line in (EXAMPLES / "restaurants.jsonl").open()]
    prompts = [line["prompt"] for line in lines]
    assert all(prompts.count(prompt) == 2 for prompt in prompts)
    assert all(line["completion"].endswith(".") for line in lines)
