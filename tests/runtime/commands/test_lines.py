"""RecordRunner keeps order, runs a schedule per record and isolates bad records."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skipdec.engines.host.events import Events
from skipdec.runtime.commands.lines import RecordRunner
from skipdec.runtime.commands.progress import GenerationProgress
from skipdec.runtime.commands.results import to_bytes
from skipdec.runtime.generator import Generator
from skipdec.runtime.requests.records import BadRecord, Record, RecordId, read_records
from skipdec.runtime.tokens.outputs import StreamDelta
from skipdec.runtime.tokens.sampler import Logits, SampledToken, Sampler
from skipdec.runtime.tokens.sampling import SamplingParams

GREEDY = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)


@pytest.fixture(scope="module")
def generator(exported: Callable[..., Path]) -> Iterator[Generator]:
    with Generator.open(exported("pre_norm"), threads=1, max_batch_size=2) as opened:
        yield opened


@pytest.fixture(scope="module")
def at_half(exported: Callable[..., Path]) -> Iterator[Generator]:
    path = exported("pre_norm")
    with Generator.open(path, threads=1, max_batch_size=2, schedule="2x") as opened:
        yield opened


def record(line: int, length: int, params: SamplingParams = GREEDY) -> Record:
    token_ids = [4 + (line * 7 + position * 3) % 120 for position in range(length)]
    return Record(line, f"r{line}", token_ids, params)


def run(
    generator: Generator,
    records: Sequence[Record | BadRecord],
    *,
    chunk_size: int = 3,
    done: Set[RecordId] = frozenset(),
    cancelled: Callable[[], bool] = lambda: False,
    on_progress: Callable[[Sequence[StreamDelta]], None] = lambda deltas: None,
) -> list[list[dict[str, Any]]]:
    runner = RecordRunner(generator, records, chunk_size=chunk_size, done=done, cancelled=cancelled)
    return list(runner.run(on_progress))


def test_lines_keep_their_order_and_equal_single_calls(generator: Generator) -> None:
    records = [record(line, length) for line, length in enumerate([3, 9, 1, 5, 2], start=1)]
    chunks = run(generator, records)
    assert [[line["id"] for line in chunk] for chunk in chunks] == [
        ["r1", "r2", "r3"],
        ["r4", "r5"],
    ]
    for one, line in zip(records, [line for chunk in chunks for line in chunk], strict=True):
        (alone,) = generator.generate([one.prompt], GREEDY)
        assert line["token_ids"] == alone.outputs[0].token_ids


def test_a_record_runs_at_its_own_horizon_in_any_batch(at_half: Generator) -> None:
    long = GREEDY.updated(max_tokens=12)
    records = [record(1, 3, long), record(2, 3), record(3, 3), BadRecord(4, None, "x")]
    (whole,) = run(at_half, records, chunk_size=9)
    for index in (0, 1, 2):
        assert run(at_half, [records[index]]) == [[whole[index]]]
    rest = run(at_half, records, done={"r1"})
    assert rest == [whole[1:]]


def test_bad_records_become_errors_and_the_others_run(generator: Generator) -> None:
    records = [
        BadRecord(1, None, "is not JSON"),
        record(2, 3),
        Record(3, "text", "no tokenizer here", GREEDY),
        Record(4, "outside", [4, 999], GREEDY),
        record(5, 62),  # 64 positions in all
        record(6, 3, GREEDY.updated(stop_token_ids=[500])),
        record(7, 1),
    ]
    lines = [line for chunk in run(generator, records) for line in chunk]
    errors = {line["line"]: line["error"] for line in lines if "error" in line}
    assert list(errors) == [1, 3, 4, 5, 6]
    for line, text in {3: "no tokenizer", 4: "id 999 at 1", 5: "62 tokens", 6: "has 500"}.items():
        assert text in errors[line]
    assert [line["id"] for line in lines if "error" not in line] == ["r2", "r7"]


def test_a_line_runs_the_schedule_it_names(at_half: Generator) -> None:
    records = [
        record(1, 3),
        replace(record(2, 3), schedule="full"),
        replace(record(3, 3), schedule="9y"),
    ]
    lines = [line for chunk in run(at_half, records) for line in chunk]
    first, second = (max(line["layers_per_token"][1:]) for line in lines[:2])
    assert first < second == 6
    assert lines[2]["line"] == 3
    assert "schedule '9y'" in lines[2]["error"]


_KEYS = [
    *SamplingParams.model_fields,
    "prompt",
    "prompt_token_ids",
    "schedule",
    "self",
    "\ud800",
    "colour",
]
_VALUES = [0, 1, 2, -1, 7, 10**9, 10**30, 0.5, 1e-300, 1e300, float("nan"), True, None, "", "x"]
_LISTS = [[], [5], [5, 9], ["x", ""], list(range(128)), {}, "\ud800", "x" * 2000, [[5]], [None]]
_FIELDS = st.dictionaries(st.sampled_from(_KEYS), st.sampled_from([*_VALUES, *_LISTS]), max_size=4)


@given(fields=st.lists(_FIELDS, min_size=1, max_size=5))
def test_every_line_gets_a_result_or_an_error(
    generator: Generator, fields: list[dict[str, Any]]
) -> None:
    documents = [{"id": n, "prompt_token_ids": [5, 6], **one} for n, one in enumerate(fields)]
    encoded = [json.dumps(document).encode() for document in documents]
    records = list(read_records(encoded, GREEDY))
    lines = [line for chunk in run(generator, records) for line in chunk]
    assert len(lines) == len(fields)
    assert all(line.get("id", n) == n for n, line in enumerate(lines))
    assert all(json.loads(to_bytes(line)) for line in lines)


def test_a_record_with_nan_logits_fails_alone(
    generator: Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    sample = Sampler.sample

    def broken(self: Sampler, logits: Logits) -> SampledToken:
        return sample(self, logits * np.nan if self._params.seed == 9 else logits)

    monkeypatch.setattr(Sampler, "sample", broken)
    sampled = SamplingParams(max_tokens=3)
    records = [record(1, 3), record(2, 3, sampled.updated(seed=9)), record(3, 3)]
    lines = [line for chunk in run(generator, records) for line in chunk]
    assert ["error" in line for line in lines] == [False, True, False]
    assert "are NaN" in lines[1]["error"]


def test_a_retried_batch_counts_its_tokens_once(
    generator: Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    sample = Sampler.sample

    def broken(self: Sampler, logits: Logits) -> SampledToken:
        fails = self._params.seed == 9 and self._num_sampled == 1
        return sample(self, logits * np.nan if fails else logits)

    monkeypatch.setattr(Sampler, "sample", broken)
    failing = SamplingParams(max_tokens=3, seed=9)
    records = [record(1, 3, GREEDY.updated(max_tokens=1)), record(2, 3, failing), record(3, 3)]
    runner = RecordRunner(generator, records, chunk_size=3, cancelled=lambda: False)
    with GenerationProgress(runner.schedules, 3, Events(), "") as progress:
        (lines,) = runner.run(progress.update, progress.attempt)
    assert ["error" in line for line in lines] == [False, True, False]
    summary = progress.summary()
    assert (summary["completions"], summary["tokens"]) == (2, 1 + 4)


def test_chunks_are_limited_by_completions(generator: Generator) -> None:
    several = SamplingParams(n=4, max_tokens=2)
    records = [record(1, 3, several), record(2, 3), record(3, 3), record(4, 3, several)]
    chunks = run(generator, records, chunk_size=4)
    assert [[line["id"] for line in chunk] for chunk in chunks] == [["r1"], ["r2", "r3", "r4"]]


def test_a_record_too_large_for_kv_memory_fails_alone(exported: Callable[..., Path]) -> None:
    records = [record(1, 3), record(2, 40, GREEDY.updated(max_tokens=20)), record(3, 3)]
    with Generator.open(exported("pre_norm"), threads=1, kv_memory=60_000) as small:
        (lines,) = run(small, records)
    assert ["error" in line for line in lines] == [False, True, False]
    assert "kv_memory allows 60,000" in lines[1]["error"]


def test_cancelling_yields_only_finished_lines(generator: Generator) -> None:
    records = [
        record(1, 3, GREEDY.updated(max_tokens=30)),
        record(2, 3, GREEDY.updated(max_tokens=2)),  # in the second batch of two
        record(3, 3),
        record(4, 3),
    ]
    steps: list[object] = []
    chunks = run(
        generator, records, chunk_size=3, cancelled=lambda: len(steps) > 4, on_progress=steps.append
    )
    assert [[line["id"] for line in chunk] for chunk in chunks] == [["r3"]]


def test_only_valid_records_count_as_completions(generator: Generator) -> None:
    several = SamplingParams(n=3, max_tokens=2)
    records = [record(1, 3, several), record(2, 3), BadRecord(3, None, "bad"), record(4, 64)]
    runner = RecordRunner(generator, records, chunk_size=9, cancelled=lambda: False)
    assert runner.num_completions == 4
    (lines,) = runner.run(lambda deltas: None)
    assert len(lines[0]["outputs"]) == 3
