"""The benchmark of drafts: what it forces, what it forgets, and that texts stay equal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from skipdec import Generator, SamplingParams
from skipdec.engines.errors import ConfigurationError, EnvironmentMismatchError, SkipDecError
from skipdec.engines.kernels.library import find_library
from skipdec.runtime.libskipdec.calls import NativeCalls
from skipdec.runtime.libskipdec.paths import native_paths
from skipdec.runtime.measuring.config import BenchConfig
from skipdec.runtime.measuring.drafts import DraftMeasurement, measure_drafts
from skipdec.runtime.tokens.outputs import CompletionOutput, Drafts

needs_kernels = pytest.mark.skipif(find_library() is None, reason="the kernels were not compiled")


@pytest.fixture(scope="module")
def generator(exported: Callable[..., Path]) -> Iterator[Generator]:
    bundle = exported("pre_norm", kernels="skipdec", quantize="int8")
    with Generator.open(bundle, threads=1, max_batch_size=2) as generator:
        yield generator


def measure(generator: Generator, **options: object) -> list[DraftMeasurement]:
    common = {"prompt_length": 4, "num_tokens": 30, "seconds": 0}
    return list(measure_drafts(generator, BenchConfig.model_validate(common | options)))


@needs_kernels
@pytest.mark.parametrize(("share", "tokens_per_pass"), [(1.0, (4, 8)), (0.0, (1, 1))])
def test_forced_drafts_hold_as_often_as_asked(
    generator: Generator, share: float, tokens_per_pass: tuple[float, float]
) -> None:
    off, own = measure(generator, drafts=["own,adapt=no"], accept=share)
    assert (off.draft, off.tokens_per_pass, off.forced_acceptance) == ("off", 1.0, None)
    assert (own.acceptance, own.forced_acceptance) == (share, share)
    low, high = tokens_per_pass
    assert low <= own.tokens_per_pass <= high


@needs_kernels
def test_every_draft_is_measured_at_every_schedule_and_batch_size(generator: Generator) -> None:
    found = measure(
        generator, drafts=["lookup", "own"], schedules=["full", "2x"], batch_sizes=[1, 2]
    )
    assert [(one.batch_size, one.schedule, one.draft) for one in found] == [
        (size, schedule, draft)
        for size in (1, 2)
        for schedule in ("full", "2x")
        for draft in ("off", "lookup", "own")
    ]


@needs_kernels
def test_a_draft_knows_no_text_of_an_earlier_call(generator: Generator) -> None:
    _, once = measure(generator, drafts=["own,adapt=no"])
    _, again = measure(generator, drafts=["own,adapt=no"])
    assert again.tokens_per_pass == once.tokens_per_pass


@needs_kernels
def test_the_generator_remembers_what_it_wrote_before(generator: Generator) -> None:
    params = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)

    def drafts() -> Drafts | None:
        return generator.generate([[5, 6, 7]], params, draft="own,adapt=no")[0].drafts

    drafts()
    known = drafts()
    measure(generator, drafts=["own,adapt=no"])
    assert drafts() == known


@needs_kernels
def test_a_text_that_drafts_changed_is_an_error(
    generator: Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    from skipdec.runtime.scheduling.running_request import Row

    output = Row.output

    def changed(row: Row) -> CompletionOutput:
        found = output(row)
        return found if row.drafts is None else replace(found, token_ids=(*found.token_ids, 1))

    monkeypatch.setattr(Row, "output", changed)
    with pytest.raises(SkipDecError, match="own changed the text of row 0"):
        measure(generator, drafts=["own"])


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"accept": 0.8}, "is given without drafts"),
        ({"accept": 1.8, "drafts": ["own"]}, "accept"),
        ({"drafts": ["onw"]}, "'onw' is unknown; did you mean 'own'"),
        ({"drafts": ["own"], "accept": 0.8, "runtime": "native"}, "leave out --runtime native"),
    ],
)
def test_senseless_options_are_refused(options: dict[str, object], problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        BenchConfig(**options)  # type: ignore[arg-type]  # pydantic converts


@needs_kernels
def test_both_runtimes_draft_the_same_tokens(generator: Generator) -> None:
    try:
        native_paths()
    except EnvironmentMismatchError as error:
        pytest.skip(str(error))
    drafts, size = ["own,adapt=no", "ends:3,adapt=no"], 2
    config = BenchConfig(
        drafts=drafts, prompt_length=4, num_tokens=30, seconds=0, batch_sizes=(size,)
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
