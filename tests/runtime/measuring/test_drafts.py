"""The benchmark of drafts forgets n-grams between passes and checks that texts stay equal."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from skipdec import Generator, SamplingParams
from skipdec.engines.errors import (
    ConfigurationError,
    EnvironmentMismatchError,
    SkipDecError,
    UsageError,
)
from skipdec.engines.kernels.library import find_library
from skipdec.runtime.libskipdec.calls import NativeCalls
from skipdec.runtime.libskipdec.paths import native_paths
from skipdec.runtime.measuring.config import BenchConfig
from skipdec.runtime.measuring.drafts import DraftMeasurement, measure_drafts
from skipdec.runtime.measuring.prompts import read_prompts
from skipdec.runtime.tokens.outputs import CompletionOutput, Drafts

needs_kernels = pytest.mark.skipif(find_library() is None, reason="the kernels were not compiled")


@pytest.fixture(scope="module")
def generator(exported: Callable[..., Path]) -> Iterator[Generator]:
    bundle = exported("pre_norm", kernels="skipdec", quantize="int8")
    with Generator.open(bundle, threads=1, max_batch_size=2) as generator:
        yield generator


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write four prompts as lines of JSON; the last two are equal."""
    path = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
    lines = ([5, 6, 7], [9, 10, 11, 12], [20, 21, 22], [20, 21, 22])
    path.write_text("\n".join(json.dumps({"prompt": ids}) for ids in lines))
    return path


def measure(generator: Generator, **options: object) -> list[DraftMeasurement]:
    common = {"num_tokens": 30, "seconds": 0}
    return list(measure_drafts(generator, BenchConfig.model_validate(common | options)))


@needs_kernels
def test_every_draft_is_measured_at_every_schedule_and_batch_size(
    generator: Generator, prompts: Path
) -> None:
    options = {"schedules": ["full", "2x"], "batch_sizes": [1, 2]}
    found = measure(generator, drafts=["lookup", "own"], prompts=prompts, **options)
    assert [(one.batch_size, one.schedule, one.draft) for one in found] == [
        (size, schedule, draft)
        for size in (1, 2)
        for schedule in ("full", "2x")
        for draft in ("off", "lookup", "own")
    ]


@needs_kernels
def test_a_draft_knows_earlier_prompts_of_its_pass_only(
    generator: Generator, tmp_path: Path
) -> None:
    """One prompt takes its three turns in three passes, two equal ones in two."""
    lines = [json.dumps({"prompt": [20, 21, 22]})] * 2
    found = []
    for number in (1, 2):
        path = tmp_path / f"{number}.jsonl"
        path.write_text("\n".join(lines[:number]))
        found.append(measure(generator, drafts=["own,adapt=no"], prompts=path)[1])
    assert [one.turns for one in found] == [3, 3]
    assert found[0].tokens_per_pass < found[1].tokens_per_pass


@needs_kernels
def test_the_benchmark_keeps_the_generators_ngrams(generator: Generator, prompts: Path) -> None:
    params = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)

    def drafts() -> Drafts | None:
        return generator.generate([[5, 6, 7]], params, draft="own,adapt=no")[0].drafts

    drafts()
    known = drafts()
    measure(generator, drafts=["own,adapt=no"], prompts=prompts)
    assert drafts() == known


@needs_kernels
def test_a_text_that_drafts_changed_is_an_error(
    generator: Generator, prompts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from skipdec.runtime.scheduling.running_request import Row

    output = Row.output

    def changed(row: Row) -> CompletionOutput:
        found = output(row)
        return found if row.drafts is None else replace(found, token_ids=(*found.token_ids, 1))

    monkeypatch.setattr(Row, "output", changed)
    with pytest.raises(SkipDecError, match="own changed the text of row 0"):
        measure(generator, drafts=["own"], prompts=prompts)


@needs_kernels
@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"schedules": ["full", "9x"]}, "preset 9x . does not fit 6 layers"),
        ({"drafts": ["ends:3", "ends:9"]}, "ends:9 runs 9 layers of 6"),
        ({"num_tokens": 40, "prompt_length": 30}, "--prompt-len 30 and --gen-len 40 are 70"),
    ],
)
def test_options_that_do_not_fit_the_bundle_fail_before_any_run(
    generator: Generator,
    options: dict[str, object],
    problem: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(Generator, "running_batch")
    with pytest.raises(SkipDecError, match=problem):
        measure(generator, **{"drafts": ["ends:3"], "prompt_length": 4} | options)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"drafts": ["onw"]}, "'onw' is unknown; did you mean 'own'"),
        ({"drafts": ["own"]}, "random tokens repeat as no text does.*add prompts, a file of your"),
        ({"drafts": ["lookup+ends:3"]}, "has lookup.ends:3, but random tokens"),
        ({"drafts": ["auto"]}, "has auto, but random tokens"),
        ({"prompts": "a.jsonl", "prompt_length": 9}, "prompt_length is of random prompts"),
        ({"temperature": 0.7}, "temperature is 0.7, and schedules are measured on greedy texts"),
    ],
)
def test_contradictory_options_are_refused(options: dict[str, object], problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        BenchConfig(**options)  # type: ignore[arg-type]  # pydantic converts


@needs_kernels
def test_drafts_are_measured_on_sampled_texts(generator: Generator, prompts: Path) -> None:
    cold, warm = (
        measure(generator, drafts=["ends:3,adapt=no"], prompts=prompts, temperature=temperature)[1]
        for temperature in (0, 50)
    )
    assert warm.tokens_per_pass != cold.tokens_per_pass


@needs_kernels
@pytest.mark.parametrize("temperature", [0, 1.5])
def test_both_runtimes_draft_the_same_tokens(
    generator: Generator, prompts: Path, temperature: float
) -> None:
    try:
        native_paths()
    except EnvironmentMismatchError as error:
        pytest.skip(str(error))
    drafts, size = ["own,adapt=no", "ends:3,adapt=no"], 2
    config = BenchConfig(
        drafts=drafts,
        prompts=prompts,
        num_tokens=30,
        seconds=0,
        batch_sizes=(size,),
        temperature=temperature,
    )
    with ExitStack() as opened:
        native = {
            draft: opened.enter_context(
                NativeCalls.open(generator.bundle.path, threads=1, max_batch_size=size, draft=draft)
            )
            for draft in ("off", *drafts)
        }
        found = measure_drafts(generator, config, native=native)
        again = measure_drafts(generator, config, native=native)
    assert [(one.draft, one.runtime) for one in found] == [
        (draft, runtime) for draft in ("off", *drafts) for runtime in ("python", "native")
    ]
    for python, own, later in zip(found[::2], found[1::2], again[1::2], strict=True):
        assert own.tokens_per_pass == python.tokens_per_pass == later.tokens_per_pass
        assert own.acceptance == python.acceptance
        assert python.of_python is None
        assert own.of_python is not None
        assert own.of_python > 0
    assert found[1].draft_share == 0 < found[3].draft_share < 1


def test_all_bad_lines_of_a_prompts_file_are_named(generator: Generator, tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": [5, 6]}\n{"prompt": []}\n{"prompt": [5], "top_p": 0.5}\n{\n')
    with pytest.raises(UsageError) as error:
        read_prompts(path, generator, 8)
    first, second, third = error.value.problems
    assert first.startswith("line 2")
    assert second == "line 3 has top_p, which options of the command set; leave it out"
    assert third.startswith("line 4")
    path.write_text('{"prompt": "a", "completion": "b"}\n' * 100)
    with pytest.raises(UsageError, match="and 90 more like these"):
        read_prompts(path, generator, 8)
    path.write_text("")
    with pytest.raises(UsageError, match="has no line"):
        read_prompts(path, generator, 8)
    with pytest.raises(UsageError, match=r"can't be read \(No such file"):
        read_prompts(tmp_path / "missing", generator, 8)
