"""Asks a bundle built-in questions in its chat template, and lets the checkpoint judge."""

from __future__ import annotations

from collections.abc import Sequence
from time import process_time

import numpy as np

from ...engines.bundle import EngineBundle
from ...engines.errors import UsageError
from ...engines.manifest import ModelSpec, PrecisionSpec
from ...runtime.tokens.tokenizer import Tokenizer
from ..architecture.weights import TensorReader
from .answers import Answer, AnswerCheck, repeats_itself
from .hugging_face import hugging_face_logits, hugging_face_model, written_greedily
from .tokens import FloatArray, GreedyText, written_texts

QUESTIONS = (
    "What is the capital of France?",
    "What is 7 plus 5?",
    "Write two sentences about the sea.",
    "Why is the sky blue?",
    "How do I boil an egg?",
    "Explain what a computer does.",
    "What do bees make?",
    "Translate 'good morning' into Spanish.",
)
ANSWER_TOKENS = 64


def affordable(
    questions: dict[str, list[int]], seconds: float, token_seconds: float
) -> dict[str, list[int]]:
    """Return as many of the first questions as can be checked in ``seconds``, at least one.

    ``token_seconds``: the time that the random prompts took; a question takes about half of it.
    """
    count = int(seconds / max(token_seconds / 2, 1e-9))
    return dict(list(questions.items())[: max(1, count)])


def asked_questions(bundle: EngineBundle, tokenizer: Tokenizer) -> dict[str, list[int]]:
    """Return the questions that leave room for an answer in the bundle, with their tokens.

    Raises UsageError if the chat template refuses a plain question, or writes a token that the
    model's vocabulary lacks.
    """
    assert tokenizer.chat is not None
    build, model = bundle.manifest.build, bundle.manifest.model
    longest = model.max_seq_len - ANSWER_TOKENS
    if build is not None:
        longest = min(longest, build.max_prompt_len)
    questions = {}
    for question in QUESTIONS:
        ids = tokenizer.chat.encode([{"role": "user", "content": question}]).token_ids
        if beyond := [each for each in ids if each >= model.vocab_size]:
            rows = f"the {model.vocab_size:,} rows of the model's embedding"
            raise UsageError("chat template", f"writes token {beyond[0]}, beyond {rows}")
        if len(ids) <= longest:
            questions[question] = list(ids)
    return questions


def compare_answers(
    bundle: EngineBundle,
    tokenizer: Tokenizer,
    questions: dict[str, list[int]],
    reader: TensorReader,
    deadline: float,
    *,
    holds_reference: bool,
) -> AnswerCheck:
    """Let the bundle answer, then let the checkpoint read the answers and give its own.

    ``holds_reference``: the checkpoint fits in memory, so it continues its own answer from its
    first differing token until ``deadline``, in `process_time`; otherwise its answer ends with that
    token.
    """
    model, precision = bundle.manifest.model, bundle.manifest.precision
    texts = written_texts(bundle, list(questions.values()), ANSWER_TOKENS)
    rows = [text.read for text in texts]
    logits = hugging_face_logits(rows, model, precision.dtype, reader)
    readings = [
        _Reading(text, each[-len(text.chosen) :], model.end_token_ids)
        for text, each in zip(texts, logits, strict=True)
    ]
    if holds_reference:
        _continue(readings, model, precision, reader, deadline)
    answers = [
        reading.answer(question, tokenizer)
        for question, reading in zip(questions, readings, strict=True)
    ]
    return AnswerCheck(answers=tuple(answers))


class _Reading:
    """The checkpoint's view of one answer: where it would differ, and how."""

    def __init__(self, text: GreedyText, logits: FloatArray, ends: Sequence[int]) -> None:
        self._text = text
        self._ends = ends
        chosen = np.array(text.chosen)
        self._preferred = logits.argmax(axis=1)
        self._gaps = logits.max(axis=1) - logits[np.arange(len(chosen)), chosen]  # nats
        differing = np.flatnonzero(self._gaps)  # NaN is not 0 either
        self._first = int(differing[0]) if len(differing) else None
        self.expected = list(text.chosen)
        if self._first is not None:
            self.expected = [*text.chosen[: self._first], int(self._preferred[self._first])]

    @property
    def is_open(self) -> bool:
        """Return True if the checkpoint's own answer is not complete."""
        is_full = len(self.expected) >= ANSWER_TOKENS
        return self._first is not None and not is_full and self.expected[-1] not in self._ends

    @property
    def row(self) -> list[int]:
        """Return the tokens that the checkpoint continues."""
        prompt = self._text.read[: len(self._text.read) - len(self._text.chosen) + 1]
        return [*prompt, *self.expected]

    def answer(self, question: str, tokenizer: Tokenizer) -> Answer:
        """Return the result as text."""
        chosen, expected = list(self._text.chosen), self.expected
        worst = int(np.argmax(self._gaps))  # a NaN, if there is one
        ellipsis = " …" if self.is_open else ""
        return Answer(
            question=question,
            answer=tokenizer.decode(self._spoken(chosen)),
            expected=tokenizer.decode(self._spoken(expected)) + ellipsis,
            equal=self._first is None,
            repeats=repeats_itself(chosen) and not repeats_itself(expected),
            unlikely=tokenizer.token_text(chosen[worst]),
            likelier=tokenizer.token_text(int(self._preferred[worst])),
            ratio=float(np.exp(np.minimum(self._gaps[worst], 500.0))),
        )

    def _spoken(self, token_ids: list[int]) -> list[int]:
        """Return the tokens without an end of text."""
        return token_ids[:-1] if token_ids[-1] in self._ends else token_ids


def _continue(
    readings: Sequence[_Reading],
    model: ModelSpec,
    precision: PrecisionSpec,
    reader: TensorReader,
    deadline: float,
) -> None:
    """Let the checkpoint complete its own answers where they differ."""
    going = [reading for reading in readings if reading.is_open]
    if not going or process_time() >= deadline:
        return
    tokens = ANSWER_TOKENS - min(len(reading.expected) for reading in going)
    rows = [reading.row for reading in going]
    reference = hugging_face_model(model, precision.dtype, reader)
    texts = written_greedily(
        reference, rows, tokens, model.end_token_ids, lambda: process_time() >= deadline
    )
    for reading, text in zip(going, texts, strict=True):
        reading.expected = [*reading.expected, *text][:ANSWER_TOKENS]
