"""Random requests in a running batch on a device write the texts that each writes alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from compared_tokens import compare_tokens
from device_generators import Exported, num_graphs, slots_of
from machine_devices import DEVICES, TOLERANCES, open_on
from poisoned_caches import poison_devices
from random_requests import ArrivingRequest, draw, run_all, texts, together
from tiny_models import STRUCTURES

from skipdec import Generator, SamplingParams
from skipdec.runtime.tokens.outputs import CompletionOutput

REQUESTS = {"cuda": 40, "rehearsal": 30}
ROWS = 5


def _greedy(wanted: ArrivingRequest) -> bool:
    return wanted.params.temperature == 0


def _alone_with_margins(generator: Generator, one: ArrivingRequest) -> CompletionOutput:
    params = one.params.updated(logprobs=2)
    return generator.generate([one.prompt], params, schedule=one.schedule)[0].outputs[0]


@DEVICES
@pytest.mark.parametrize(
    ("structure", "dtype"),
    [*((structure, "float16") for structure in STRUCTURES), ("untied", "float32")],
)
def test_each_request_writes_what_it_writes_alone(
    exported: Exported,
    monkeypatch: pytest.MonkeyPatch,
    record_property: Callable[[str, object], None],
    structure: str,
    dtype: str,
    device: str,
) -> None:
    """All texts are equal on host memory. On CUDA, padding to other row counts may change rounding:
    greedy texts diverge only at ties, and at most a third of the sampled ones do. New memory is
    full of NaN.
    """
    wanted = draw(17, REQUESTS[device])
    poison_devices(monkeypatch)
    with open_on(exported(structure, dtype=dtype), device, max_batch_size=ROWS) as generator:
        outputs = together(generator, wanted)
        expected = [one.alone(generator) for one in wanted]
        different = [
            index
            for index, (one, other) in enumerate(zip(outputs, expected, strict=True))
            if texts(one) != texts(other)
        ]
        greedy = [index for index in different if _greedy(wanted[index])]
        comparison = compare_tokens(
            [outputs[index].outputs[0] for index in greedy],
            [_alone_with_margins(generator, wanted[index]) for index in greedy],
            TOLERANCES[dtype],
        )
    record_property("requests", len(wanted))
    record_property("equal", len(wanted) - len(different))
    record_property("ties", comparison.ties)
    assert not comparison.diverged, "\n".join(comparison.diverged)
    drawn = sum(not _greedy(one) for one in wanted)
    assert len(different) - len(greedy) <= (drawn / 3 if device == "cuda" else 0)
    assert not any(each.finish_reason == "error" for one in outputs for each in one.outputs)


@DEVICES
def test_each_padded_row_count_has_one_captured_graph(
    exported: Exported, record_property: Callable[[str, object], None], device: str
) -> None:
    """Three rows run in the graph of four. Relaunched graphs give the same tokens."""
    params = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)
    captured: dict[int, int] = {}
    with open_on(exported("pre_norm", dtype="float16"), device, max_batch_size=8) as generator:
        expected = generator.generate([[5, 6, 7]], params.updated(logprobs=2))[0].outputs[0]
        with generator.running_batch(admission="fcfs") as engine:
            for rows in (1, 2, 3, 4, 8, 1, 2, 3, 4, 8):
                numbers = [engine.add([5, 6, 7], params, schedule="full") for _ in range(rows)]
                run_all(engine)
                found = [engine.take(number).outputs[0] for number in numbers]
                comparison = compare_tokens(found, [expected] * rows, TOLERANCES["float16"])
                assert not comparison.diverged, "\n".join(comparison.diverged)
                again = num_graphs(slots_of(engine)._engines)
                assert captured.setdefault(rows, again) <= again
    record_property("graphs", captured)
    assert captured[1] < captured[2] < captured[4] < captured[8] == again
