"""Answers to built-in questions are compared with full precision and reported in plain words."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from fixture_types import Checkpoints
from text_bundles import (
    STRUCTURE,
    add_unembedded_tokens,
    copy_with_tokenizer,
    export_chat_bundle,
)
from verified_bundles import verified

from skipdec.engines.bundle import EngineBundle
from skipdec.exporter.config import ExportConfig
from skipdec.exporter.pipeline.exporting import export
from skipdec.exporter.verification import bundle, questions
from skipdec.exporter.verification.answers import Answer, AnswerCheck, repeats_itself
from skipdec.exporter.verification.report import TokenCheck, VerificationReport
from skipdec.runtime.tokens.tokenizer import Tokenizer

PARIS = "The capital of France is Paris."


def answer(text: str, *, ratio: float = 1.1, repeats: bool = False) -> Answer:
    return Answer(
        question="What is the capital of France?",
        answer=text,
        expected=PARIS,
        equal=text == PARIS,
        repeats=repeats,
        unlikely=" Rome",
        likelier=" Paris",
        ratio=ratio,
    )


def report(*answers: Answer, divergence: float = 0.004) -> VerificationReport:
    tokens = TokenCheck(
        compared=128,
        equal=121,
        ties=5,
        worst_gap=0.1,
        worst_logprob_error=8.9,
        tolerance=0.01,
        required=False,
        divergence=divergence,
        usual_divergence=0.005,
        allowed_divergence=0.02,
    )
    return VerificationReport(
        engines=(),
        tokens=tokens,
        answers=AnswerCheck(answers=answers) if answers else None,
        remedies=("--dtype float16",),
        seconds=1.0,
    )


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (answer("La France, la France, la France,", repeats=True), "which repeats itself"),
        (answer(" "), "which is empty"),
        (answer("It is Rome.", ratio=12.0), '"Rome" stands where full precision finds "Paris" 12'),
        (answer("It is Rome.", ratio=math.nan), '"Rome" stands where'),
    ],
)
def test_a_broken_answer_is_a_warning_at_usual_divergence(given: Answer, problem: str) -> None:
    checked = report(given, answer(PARIS))
    first, last = checked.warnings
    assert problem in first
    assert PARIS in first
    assert "1 of 2 answers" in last
    assert last.endswith("or try --dtype float16")
    assert checked.verdict == "passed, but answers break"


def test_good_answers_suppress_the_warning_of_unusual_divergence() -> None:
    assert report(divergence=0.012).warnings
    good = report(answer(PARIS), answer("Paris is the capital."), divergence=0.012)
    assert good.warnings == []
    assert good.verdict == "passed"
    assert any("1 answered as at full precision, word for word, 1 in" in x for x in good.summary())


def test_the_summary_has_no_powers_of_ten() -> None:
    lines = report(answer(PARIS), divergence=0.00037).summary()
    assert not any("e-" in line or "e+" in line for line in lines)


def test_two_long_answers_are_shown_from_their_first_difference() -> None:
    shared = "The sea is a vast and mysterious realm, teeming with life and full of wonders. " * 2
    long = answer(shared + "It ends.").model_copy(update={"expected": shared + "It goes on."})
    text = long.describe()
    assert "It ends." in text
    assert "It goes on." in text


@pytest.mark.parametrize(
    ("token_ids", "repeats"),
    [
        ([5, 6, *[1, 2, 3] * 4], True),
        ([*[4] * 12], True),
        ([*[4] * 11], False),
        ([*range(11), *range(11), *range(11)], True),
        ([*range(40)], False),
        ([], False),
    ],
)
def test_a_repeated_phrase_is_found(token_ids: list[int], repeats: bool) -> None:
    assert repeats_itself(token_ids) == repeats


@pytest.fixture
def chat_bundle(checkpoint: Checkpoints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a bundle whose few positions fit a question and a short answer."""
    monkeypatch.setattr(questions, "ANSWER_TOKENS", 8)
    monkeypatch.setattr(questions, "QUESTIONS", ("Why?", "Who?", "long " * 100))
    return export_chat_bundle(checkpoint(STRUCTURE), tmp_path, quantize="int8")


def test_full_precision_checks_answers_and_writes_its_own(
    chat_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first token of the bundle's answers is replaced, so they are not the model's."""
    written = questions.written_texts

    def other(*arguments: object) -> object:
        texts = written(*arguments)  # type: ignore[arg-type]
        return [
            type(text)(text.read, ((text.chosen[0] + 1) % 256, *text.chosen[1:]), text.logprobs)
            for text in texts
        ]

    honest = verified(chat_bundle, chat_bundle.parent / "checkpoint").answers
    assert honest is not None
    assert [one.question for one in honest.answers] == ["Why?", "Who?"]
    monkeypatch.setattr(questions, "written_texts", other)
    changed = verified(chat_bundle, chat_bundle.parent / "checkpoint").answers
    assert changed is not None
    for one, before in zip(changed.answers, honest.answers, strict=True):
        assert not one.equal
        assert one.ratio > 1
        assert one.expected == before.expected or not before.equal


def test_the_tokenizer_and_its_template_are_closed(
    chat_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened_tokenizers, closed, close = list[Tokenizer](), list[Tokenizer](), Tokenizer.close

    def recorded(opened: EngineBundle, tokenizer: Tokenizer) -> dict[str, list[int]]:
        opened_tokenizers.append(tokenizer)
        return {}

    monkeypatch.setattr(bundle, "asked_questions", recorded)
    monkeypatch.setattr(Tokenizer, "close", lambda one: (closed.append(one), close(one)))
    verified(chat_bundle, chat_bundle.parent / "checkpoint")
    assert opened_tokenizers[0] in closed


def test_processor_time_limits_the_questions_to_no_fewer_than_one() -> None:
    many = {str(number): [1] for number in range(8)}
    assert list(questions.affordable(many, -1.0, 1.0)) == ["0"]
    assert len(questions.affordable(many, 8.5, 5.0)) == 3


def test_full_precision_continues_from_the_first_differing_token() -> None:
    logits = np.eye(3, dtype=np.float32)[[0, 2]]
    text = questions.GreedyText((3, 1), (1, 2), ({}, {}))
    reading = questions._Reading(text, logits, (2,))
    assert reading.row == [3, 0]
    assert reading.is_open
    assert not questions._Reading(text, logits, (0,)).is_open


def test_a_bundle_larger_than_memory_answers_no_questions(
    chat_bundle: Path,
) -> None:
    report = verified(chat_bundle, chat_bundle.parent / "checkpoint", verify_memory=0)
    assert report.answers is None
    assert report.verdict == "passed, in part"
    assert "verify_memory" in report.notes[0]


def test_questions_with_tokens_beyond_the_embedding_are_skipped(
    checkpoint: Checkpoints, tmp_path: Path
) -> None:
    source = copy_with_tokenizer(checkpoint(STRUCTURE), tmp_path / "checkpoint")
    add_unembedded_tokens(source)
    (source / "chat_template.jinja").write_text("<299>{{ messages[0].content }}")
    export(ExportConfig(model=str(source), output=tmp_path / "bundle", verify=False))
    report = verified(tmp_path / "bundle", source)
    assert report.answers is None
    assert "no questions were asked: chat template" in report.notes[0]
    assert "beyond the 300 rows of the model's embedding" in report.notes[0]
