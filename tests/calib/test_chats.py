"""All commands that read rows with messages render them with the chat template."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from skipdec.calib.calibration.config import CalibrationConfig
from skipdec.calib.calibration.plan import plan_calibration
from skipdec.calib.data.data import DataConfig
from skipdec.calib.evaluation.config import BundleChoice, EvaluationConfig
from skipdec.calib.evaluation.evaluation import evaluate
from skipdec.calib.evaluation.inputs import prepare as prepare_evaluation
from skipdec.calib.fitting.inputs import FitConfig, prepare
from skipdec.calib.tuning.config import TuneConfig
from skipdec.calib.tuning.plan import plan_tuning
from skipdec.engines.bundle import EngineBundle
from skipdec.engines.errors import SkipDecError
from skipdec.runtime.generator import Generator
from skipdec.runtime.tokens.tokenizer import Tokenizer

Rows = set[tuple[tuple[int, ...], tuple[int, ...]]]
ANSWERS = ("Hi!", "</s>, yes.")


@pytest.fixture(scope="module")
def chats(tmp_path_factory: pytest.TempPathFactory) -> DataConfig:
    path = tmp_path_factory.mktemp("chats") / "chats.jsonl"
    lines = []
    for index, answer in enumerate(ANSWERS):
        question = {"role": "user", "content": f"Hé {index}"}
        lines.append({"messages": [question, {"role": "assistant", "content": answer}]})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return DataConfig(path=path)


def tuned(model: Path, bundle: Path, data: DataConfig) -> Rows:
    output = data.path.parent / "tuned"
    examples = plan_tuning(
        TuneConfig(model=str(model), data=data, schedule="2x", output=output)
    ).data.examples
    return {(one.prompt_token_ids, one.completion_token_ids) for one in examples}


def calibrated(model: Path, bundle: Path, data: DataConfig) -> Rows:
    config = CalibrationConfig(
        model=str(model),
        data=data,
        num_examples=1,
        num_held_out=1,
        output=data.path.parent / "ranges.json",
    )
    plan = plan_calibration(config)
    examples = (*plan.observed, *plan.held_out)
    return {(one.prompt_token_ids, one.completion_token_ids) for one in examples}


def fitted(model: Path, bundle: Path, data: DataConfig) -> Rows:
    inputs = prepare(FitConfig(bundle=bundle, data=data, target_speedup=1.2))
    return {(one.prompt_token_ids, one.completion_token_ids) for one in inputs.data.examples}


def evaluated(model: Path, bundle: Path, data: DataConfig) -> Rows:
    config = EvaluationConfig(bundles=(BundleChoice("llama", bundle),), data=data)
    (prepared,) = prepare_evaluation(config).bundles
    return {(one.token_ids, one.target_ids) for one in prepared.prompts}


COMMANDS: tuple[Callable[[Path, Path, DataConfig], Rows], ...] = (
    *(tuned, calibrated, fitted, evaluated),
)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.__name__)
def test_every_command_reads_the_tokens_of_served_chats(
    command: Callable[..., Rows], llama: Path, chats: DataConfig
) -> None:
    tokenizer = Tokenizer.of(EngineBundle.open(llama))
    assert tokenizer is not None
    assert tokenizer.chat is not None
    end = tokenizer.ids_of_special_tokens["</s>"]
    expected = {
        (
            tokenizer.chat.encode([{"role": "user", "content": f"Hé {index}"}]).token_ids,
            (*tokenizer.encode_plain(f" {answer}"), end),
        )
        for index, answer in enumerate(ANSWERS)
    }
    assert command(llama.parent / "checkpoint", llama, chats) == expected


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.__name__)
def test_every_command_refuses_chats_without_a_template_before_work(
    command: Callable[..., Rows], model: Path, bundle: Path, chats: DataConfig
) -> None:
    problem = "chats.jsonl, line [12] has messages, and the model has no chat template; put"
    with pytest.raises(SkipDecError, match=problem) as caught:
        command(model, bundle, chats)
    assert " object at " not in str(caught.value)


def test_a_fresh_model_has_no_template_for_chats(chats: DataConfig, tmp_path: Path) -> None:
    sizes = "layers=2,width=32,heads=4"
    config = TuneConfig(from_scratch=sizes, data=chats, schedule="2x", output=tmp_path / "tuned")
    with pytest.raises(SkipDecError, match="a fresh model has no chat template"):
        plan_tuning(config)


def test_chats_are_evaluated_against_their_answers(llama: Path, chats: DataConfig) -> None:
    bundles = (BundleChoice("llama", llama),)
    options: dict[str, Any] = {"max_tokens": 4, "resamples": 20, "seconds": 0}
    evaluation = evaluate(EvaluationConfig(bundles=bundles, data=chats, **options), Generator.open)
    assert [prompt.text for prompt in evaluation.prompts] == ["user: Hé 0", "user: Hé 1"]
    assert [prompt.references for prompt in evaluation.prompts] == [(text,) for text in ANSWERS]
    assert evaluation.rows[0].figures["perplexity"].estimate.value > 1


@pytest.mark.parametrize(("long_prompts", "advised"), [("refuse", True), ("cut", False)])
def test_a_long_chat_is_refused_with_advice_on_long_prompts(
    long_prompts: str, advised: bool, llama: Path, tmp_path: Path
) -> None:
    path = tmp_path / "chats.jsonl"
    question = {"role": "user", "content": "long " * 100}
    path.write_text(json.dumps({"messages": [question, {"role": "assistant", "content": "yes"}]}))
    data = {"path": path, "long_prompts": long_prompts}
    config = EvaluationConfig(bundles=(BundleChoice("llama", llama),), data=data)
    with pytest.raises(SkipDecError, match="shorten or remove the row") as caught:
        prepare_evaluation(config)
    assert ("long_prompts" in str(caught.value)) == advised
