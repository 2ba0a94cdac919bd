"""``fit --lossless``: what is recorded, simulated and chosen, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import command_line
import pytest
from text_bundles import STRUCTURE, copy_with_tokenizer
from typer.testing import Result

from skipdec.calib.data.data import DataConfig
from skipdec.calib.fitting.lossless import lossless
from skipdec.calib.fitting.lossless.config import LosslessConfig, prepare
from skipdec.calib.fitting.lossless.lossless import Candidate, fit_drafts
from skipdec.calib.fitting.lossless.recording import Runs
from skipdec.calib.fitting.lossless.simulation import (
    Costs,
    Lookup,
    OwnNGrams,
    Recorded,
    Simulated,
    Source,
    Text,
    acceptance,
    simulate,
    teach,
)
from skipdec.engines.errors import SkipDecError, UsageError
from skipdec.engines.kernels.library import find_library
from skipdec.exporter.config import ExportConfig
from skipdec.exporter.pipeline.exporting import export
from skipdec.runtime.drafting.config import DraftConfig, parse_draft
from skipdec.runtime.drafting.memory import DraftMemory
from skipdec.runtime.generator import Generator
from skipdec.runtime.tokens.outputs import Drafts
from skipdec.runtime.tokens.sampling import SamplingParams

pytestmark = pytest.mark.usefixtures("own_thread_pools")

needs_kernels = pytest.mark.skipif(find_library() is None, reason="the kernels were not compiled")
FLAT = Costs((1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7), {"ends:2": 0.2})


def draft(text: str) -> DraftConfig:
    found = parse_draft(text)
    assert found is not None
    return found


def export_tiny(checkpoint: Path, directory: Path, quantize: str) -> Path:
    source = copy_with_tokenizer(checkpoint, directory / "checkpoint")
    kernels = "skipdec" if find_library() is not None else "auto"
    output = directory / "bundle"
    export(
        ExportConfig(
            model=str(source), output=output, quantize=quantize, kernels=kernels, verify=False
        )
    )
    return output


@pytest.fixture(scope="module")
def tiny(checkpoint: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_tiny(checkpoint(STRUCTURE), tmp_path_factory.mktemp("lossless"), "int8")


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    names = [f"{a}{b}" for a in "abcd" for b in "xy"]
    path.write_text("\n".join(json.dumps({"prompt": n, "completion": n * 4}) for n in names))
    return path


@pytest.fixture
def config(tiny: Path, rows: Path) -> LosslessConfig:
    return LosslessConfig(
        bundle=tiny,
        data=DataConfig(path=rows),
        drafts=("own", "lookup", "own+ends:2"),
        max_tokens=16,
        seconds=1e-9,
    )


def right(texts: Sequence[Text], name: str) -> Source:
    """Return a source that always knows the rest of the text."""
    return Recorded(
        {
            (text.prompt, written): text.tokens[written : written + 7]
            for text in texts
            for written in range(len(text.tokens))
        }
    )


def test_drafts_that_hold_gain_what_their_costs_allow() -> None:
    texts = [Text((1, 2), tuple(range(10, 26)), 16)] * 4
    found = simulate(draft("ends:2,adapt=no,tokens=4"), partial(right, texts), texts, FLAT)
    assert found.drafts == Drafts(passes=12, drafted=48, accepted=48)  # 15 tokens behind the first
    assert found.gain == pytest.approx(15 / (3 * (1.4 + 4 * 0.2)))


def test_drafts_that_never_hold_are_switched_off() -> None:
    texts = [Text((1, 2), tuple(range(10, 60)), 50)] * 8
    wrong = Recorded({((1, 2), written): (7,) * 7 for written in range(50)})
    found = simulate(draft("ends:2"), lambda _: wrong, texts, FLAT)
    assert found.drafts.accepted == 0
    assert 0.9 < found.gain < 1
    always = simulate(draft("ends:2,adapt=no"), lambda _: wrong, texts, FLAT)
    assert always.gain < 0.5


def test_own_ngrams_know_texts_that_were_written_before() -> None:
    first, second = Text((1,), (5, 6, 7, 8, 9), 5), Text((2,), (5, 6, 7, 8, 9), 5)
    assert acceptance(OwnNGrams([]), [first], 7).held == 0
    assert acceptance(OwnNGrams([]), [first, second], 7).first == 1
    taught = acceptance(OwnNGrams([first]), [second], 7)
    assert (taught.first, taught.proposed) == (1, 1)
    assert taught.held == pytest.approx((4 + 3 + 2 + 1) / 4)


def test_lookup_begins_anew_with_each_text() -> None:
    text = Text((1,), (5, 6, 7, 5, 6, 7), 6)
    assert acceptance(Lookup(), [text], 7) == acceptance(Lookup(), [text, text], 7)


@needs_kernels
@pytest.mark.parametrize(
    "name", ["ends:2,adapt=no,tokens=3", "own,adapt=no", "own+first:3,adapt=no,tokens=2"]
)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_the_simulation_drafts_as_the_engines_do(
    config: LosslessConfig, tiny: Path, name: str, temperature: float
) -> None:
    config = config.updated(drafts=(name,), temperature=temperature)
    inputs = prepare(config)
    with Generator.open(tiny, threads=1) as generator:
        runs = Runs(generator, config, inputs.max_tokens)
        teaching, texts = runs.texts(inputs.teaching), runs.texts(inputs.measured)
        part = name.partition(",")[0].rpartition("+")[2]
        proposals = runs.record(part, texts)[0] if part != "own" else {}
        memory = DraftMemory()
        teach(memory.tables.shared(), teaching)
        params = SamplingParams(
            temperature=temperature, max_tokens=inputs.max_tokens, seed=config.seed
        )
        counts = []
        for text in texts:
            (output,) = generator.generate_requests(
                requests := generator.make_requests([list(text.prompt)], params),
                generator.resolve_schedules(requests, "full"),
                draft=name,
                draft_memory=memory,
            )
            assert output.outputs[0].token_ids == text.tokens
            counts.append(output.outputs[0].drafts or Drafts())
    sources = {"own": lambda: OwnNGrams(teaching), part: lambda: Recorded(proposals)}
    if part == "own":
        sources.pop(part)
        sources["own"] = lambda: OwnNGrams(teaching)
    costs = Costs(FLAT.passes, {part: 0.2})
    found = simulate(draft(name), lambda source: sources[source](), texts, costs)
    assert found.drafts == Drafts(
        sum(one.passes for one in counts),
        sum(one.drafted for one in counts),
        sum(one.accepted for one in counts),
    )
    assert found.drafts.accepted > 0


def seconds_by_draft(gains: dict[str, float]) -> Callable[..., float]:
    def seconds(runs: Runs, one: DraftConfig | None, *_: object) -> float:
        return 1 / gains.get("off" if one is None else str(one), 1.0)

    return seconds


@needs_kernels
def test_the_best_measured_of_the_best_simulated_is_chosen(
    config: LosslessConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Runs, "seconds", seconds_by_draft({"lookup": 1.5, "own": 1.2}))
    found = fit_drafts(config)
    assert str(found.chosen.draft) == "lookup"
    assert found.chosen.gained == pytest.approx(1.5)
    assert [one.gain is None for one in found.candidates] == [False] * 3
    assert set(found.acceptance) == {"own", "lookup", "ends:2"}
    assert len(found.costs.passes) == 8
    assert found.costs.passes[0] == 1
    measured = found.draft_file(threads=1).measured
    assert measured is not None
    assert measured["data"]["prompts"] == measured["data"]["teaching"] == 4


@needs_kernels
def test_the_command_writes_what_draft_set_takes(
    config: LosslessConfig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(Runs, "seconds", seconds_by_draft({"own": 1.2}))
    monkeypatch.setattr("skipdec.calib.commands.fit.opener", lambda *_, **__: Generator.open)
    output = tmp_path / "draft.json"
    result = run(config, "--draft", "own", "--max-tokens", "12", "-o", str(output))
    assert result.exit_code == 0, result.output
    assert "chosen: own, 1.20×" in result.stdout
    shown = command_line.run("draft", "set", config.bundle, output)
    assert shown.stdout == "own\n"


@needs_kernels
def test_nothing_faster_is_an_error_with_the_best(
    config: LosslessConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Runs, "seconds", seconds_by_draft({"own": 1.02}))
    with pytest.raises(
        SkipDecError, match=r"nothing is faster: the best, own, was measured at 1\.02"
    ):
        fit_drafts(config)
    assert lossless.LEAST_GAIN == 1.03


def test_of_candidates_that_differ_little_only_the_best_is_timed() -> None:
    names = ("own+ends:2", "own+ends:3", "own", "ends:2", "first:2", "lookup")
    candidates = [Candidate(draft(name), Simulated(Drafts(), 2.0)) for name in names]
    best = lossless._best_of_kinds(candidates)
    assert [str(one.draft) for one in best] == ["own+ends:2", "own", "ends:2"]


@needs_kernels
def test_default_candidates_name_no_layers_twice(config: LosslessConfig) -> None:
    inputs = prepare(config.updated(drafts=()))
    texts = [str(one) for one in inputs.candidates]
    assert texts[:3] == ["own", "lookup", "own+lookup"]
    assert {"ends:2", "own+ends:2", "first:3"} <= set(texts)
    plans = list(inputs.plans.values())
    assert len(set(plans)) == len(plans)


@needs_kernels
@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"drafts": ("ends:6",)}, "ends:6 runs 6 layers of 6"),
        ({"drafts": ("auto",)}, "drafts has auto"),
        ({"num_examples": 2}, "num_examples"),
    ],
)
def test_bad_options_are_refused_before_engines_are_loaded(
    config: LosslessConfig, changes: dict[str, object], problem: str
) -> None:
    with pytest.raises(SkipDecError, match=problem):
        prepare(config.updated(**changes))


def test_bundles_whose_bits_are_not_promised_are_refused(bundle: Path, rows: Path) -> None:
    with pytest.raises(UsageError, match=r"needs skipdec.s kernels|needs weights of int8"):
        prepare(LosslessConfig(bundle=bundle, data=DataConfig(path=rows)))


def run(config: LosslessConfig, *options: str) -> Result:
    arguments = ["fit", str(config.bundle), "--data", str(config.data.path), "--lossless"]
    return command_line.run(*arguments, *options)


@needs_kernels
@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--target-speedup", "2"], "--lossless has no --target-speedup"),
        (["--slots", "4"], "--lossless does not use --slots"),
        (["--examples", "2"], "--examples"),
        (["--draft", "onw"], "did you mean 'own'"),
        (["--quantize", "int8"], "--lossless fits a bundle"),
    ],
)
def test_options_without_a_meaning_are_refused(
    config: LosslessConfig, options: list[str], problem: str
) -> None:
    result = run(config, *options)
    assert result.exit_code == 2, result.output
    assert problem in " ".join(result.output.split())
