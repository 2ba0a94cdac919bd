"""A running batch on a device of host memory: each text is what it would be alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from device_generators import TARGETS, Exported
from host_device import HostDevice
from random_requests import draw, texts, together
from tiny_models import STRUCTURES

from skipdec import Generator, SamplingParams

Open = Callable[..., Generator]
LONG = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
MIXED = ("full", "linear:max=5,min=2,horizon=12", "constant:max=3,placement=unified")


@pytest.fixture(params=list(TARGETS))
def open_on_device(
    request: pytest.FixtureRequest, exported: Exported, tmp_path: Path
) -> Iterator[Open]:
    """``open_on_device(structure, **options of Generator)``; five rows, if they don't say."""
    opened = []

    def open_generator(structure: str = "pre_norm", **options: object) -> Generator:
        bundle, backend = TARGETS[request.param](exported, tmp_path, structure)
        opened.append(Generator(bundle, backend, **({"max_batch_size": 5} | options)))
        return opened[-1]

    yield open_generator
    for generator in opened:
        generator.close()


def device_of(generator: Generator) -> HostDevice:
    assert isinstance(generator.device, HostDevice)
    return generator.device


@pytest.mark.parametrize("structure", STRUCTURES)
def test_each_text_is_what_it_is_alone(open_on_device: Open, structure: str) -> None:
    """Random arrivals, lengths, schedules, completions; long prompts in chunks."""
    generator = open_on_device(structure)
    wanted = draw(7, 30)
    outputs = together(generator, wanted)
    for one, output in zip(wanted, outputs, strict=True):
        assert texts(output) == texts(one.alone(generator))
