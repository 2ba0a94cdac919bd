"""A bundle's answers to questions beside those of its checkpoint at full precision, for people."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import shorten

from pydantic import ConfigDict, Field

from ...engines.checking import FrozenModel

UNLIKELY = 10.0
"""A token this many times less likely than the best one at full precision breaks an answer."""

_REPETITIONS = 3
_SHOWN_ANSWERS = 3
_SHOWN_CHARACTERS = 90
_SHOWN_BEFORE = 20  # characters before the first difference


class MeasuredModel(FrozenModel):
    """A report with measured numbers; its JSON keeps infinities and NaN."""

    model_config = ConfigDict(ser_json_inf_nan="constants")


class Answer(MeasuredModel):
    """A bundle's greedy answer to a question, and the checkpoint's at full precision.

    The checkpoint also reads the bundle's answer. Where it would have chosen another token, the two
    are compared by its own probabilities. ``unlikely`` is the token that it finds least likely.
    """

    question: str
    answer: str
    expected: str = Field(description="at full precision; with an ellipsis where it was cut")
    equal: bool
    repeats: bool = Field(description="ends in one phrase over and over, unlike ``expected``")
    unlikely: str = Field(description="word for which full precision prefers ``likelier``")
    likelier: str
    ratio: float = Field(description="how many times likelier; 1 if no word differs")

    @property
    def fault(self) -> str | None:
        """Return what is wrong with the answer; None if it is equal or only worded differently."""
        if self.equal:
            return None
        if not self.answer.strip() and self.expected.strip():
            return "which is empty"
        if self.repeats:
            return "which repeats itself"
        if not self.ratio < UNLIKELY:  # NaN is not
            return (
                f'in which "{self.unlikely.strip()}" stands where full precision finds '
                f'"{self.likelier.strip()}" {self.ratio:,.0f} times as likely'
            )
        return None

    def describe(self, fault: str | None = None) -> str:
        """Return both answers, shortened, as one sentence."""
        suffix = "" if fault is None else f", {fault}"
        pairs = enumerate(zip(self.answer, self.expected, strict=False))
        common = next((index for index, (one, other) in pairs if one != other), len(self.answer))
        begin = max(0, self.answer.rfind(" ", 0, max(0, common - _SHOWN_BEFORE)))
        answer, expected = (_short(text, begin) for text in (self.answer, self.expected))
        return (
            f'to "{self.question}" the bundle answers "{answer}"{suffix}; at full precision the '
            f'answer is "{expected}"'
        )


class AnswerCheck(MeasuredModel):
    """Answers to the built-in questions, in the checkpoint's chat template."""

    answers: tuple[Answer, ...]

    @property
    def broken(self) -> list[tuple[Answer, str]]:
        """Return the faulty answers, each with its fault."""
        found = ((answer, answer.fault) for answer in self.answers)
        return [(answer, fault) for answer, fault in found if fault is not None]

    @property
    def warnings(self) -> list[str]:
        """Return a sentence about each of the first faulty answers, and one with their number."""
        broken = self.broken
        if not broken:
            return []
        described = [answer.describe(fault) for answer, fault in broken[:_SHOWN_ANSWERS]]
        return [
            *described,
            f"{len(broken)} of {len(self.answers)} answers to built-in questions broke in this "
            "precision; ask the bundle questions of your own",
        ]

    def summary(self) -> list[str]:
        """Return lines for people, including one of the answers that are worded differently."""
        reworded = [each for each in self.answers if not each.equal and each.fault is None]
        equal = sum(answer.equal for answer in self.answers)
        line = (
            f"{len(self.answers)} built-in questions: {equal} answered as at full precision, word "
            f"for word, {len(reworded)} in other words, {len(self.broken)} badly"
        )
        return [line, *(answer.describe() for answer in reworded[:1])]


def repeats_itself(token_ids: Sequence[int], least: int = 12) -> bool:
    """Return True if the last tokens, at least ``least``, repeat one phrase three times or more.

    The last repetition may be cut.

    >>> repeats_itself([1, 2, *[7, 8, 9] * 5])
    True
    """
    for size in range(1, len(token_ids) // _REPETITIONS + 1):
        tail = token_ids[-max(size * _REPETITIONS, least) :]
        if len(tail) >= least and tail[size:] == tail[:-size]:
            return True
    return False


def _short(text: str, begin: int) -> str:
    """Return the text from ``begin`` on, shortened to one line with ellipses."""
    return "… " * bool(begin) + shorten(text[begin:], _SHOWN_CHARACTERS, placeholder=" …")
