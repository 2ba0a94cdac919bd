"""Decoding: which tokens rows feed in a pass, and which results they keep."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace

from typing_extensions import override

from ..stitching.protocol import StepRow
from ..tokens.logits import StepLogits
from ..tokens.outputs import StreamDelta
from .running_request import Row


class Decoding(ABC):
    """Decides which tokens each row feeds in the next pass, and draws tokens from their logits.

    Every row feeds its last token. The tokens after it are guesses of what comes next: each has the
    logits of ordinary decoding as long as the guesses before it are right, so `accept` keeps
    exactly what ordinary decoding would write. The running batch rolls back the keys and values of
    wrong guesses.

    Worked: a row ends in "a" and feeds "a b c"; the sampler draws "b" after "a", then "d". Both are
    accepted, "c" is rolled back, and the next pass feeds "d".
    """

    @abstractmethod
    def feed(self, rows: Sequence[Row]) -> list[StepRow]:
        """Return what each row feeds in the next pass, in the order of ``rows``; see `fed`."""

    def ahead(self, rows: Sequence[Row]) -> list[StepRow]:
        """Return what `feed` will return after the coming pass of ``rows``, or nothing.

        Its tokens are placeholders, because they are not known yet; see `SlotStitcher.step`.
        """
        return []

    @property
    def drafting(self) -> int:
        """The most tokens that a row drafts now; 0 while there are no drafts."""
        return 0

    @property
    def draft_steps(self) -> int:
        """The number of draft steps that layers have run so far."""
        return 0

    def passed(  # noqa: B027
        self, rows: Sequence[StepRow], seconds: float, searching: float, *, is_first: bool = False
    ) -> None:
        """Record the time of a pass, from `feed` to the last accepted token, by `EngineLock.clock`.

        ``searching`` is the time of `feed`. With ``is_first`` the pass had to find its calls, so it
        took longer than later ones will.
        """

    def accept(
        self,
        row: Row,
        fed: StepRow,
        logits: StepLogits,
        first: int,
        deltas: list[StreamDelta],
    ) -> None:
        """Draw the row's next tokens until it ends or one differs from the guess that was fed.

        ``logits`` holds those of the row's tokens from index ``first`` on. Adds a delta for each
        token to ``deltas``; it is ``drafted`` if the token is the guess that was fed and the row
        goes on after it. Raises what the sampler raises; the deltas of earlier tokens stay.
        """
        for index, plan in enumerate(fed.plans):
            token = logits.sample(first + index, row.sampler)
            deltas.append(row.accept(token, len(plan)))
            if row.finish_reason is not None or index + 1 == len(fed.tokens):
                return
            if token.token_id != fed.tokens[index + 1]:
                return
            deltas[-1] = replace(deltas[-1], drafted=True)

    def accepted(self, row: Row, guesses: int, held: int) -> None:  # noqa: B027
        """Record that a row fed ``guesses``, of which ``held`` were right; it may have failed."""


class OrdinaryDecoding(Decoding):
    """Feeds one token of each row per pass."""

    def feed(self, rows: Sequence[Row]) -> list[StepRow]:
        """Feed the last token of each row."""
        return [fed(row) for row in rows]

    @override
    def ahead(self, rows: Sequence[Row]) -> list[StepRow]:
        """Return all rows if some go on and the device can guess the next token of each, else none.

        A row that is about to end repeats its position, because nothing reads it afterwards.
        """
        if not all(row.sampler.is_guessable for row in rows):
            return []
        goes_on = [len(row.token_ids) + 1 < row.request.max_tokens for row in rows]
        if not any(goes_on):
            return []
        return [
            StepRow(
                row.number,
                (0,),
                row.num_positions + more,
                (row.schedule.plan(len(row.token_ids) - 1 + more),),
                row.sampler.next_draw,
            )
            for row, more in zip(rows, goes_on, strict=True)
        ]


def fed(row: Row, guesses: Sequence[int] = ()) -> StepRow:
    """Return the row's last token followed by ``guesses``.

    Each token runs the layers of its position in the text.
    """
    index = len(row.token_ids) - 1  # of the generated token that is fed
    tokens = (row.token_ids[-1], *guesses)
    plans = tuple(row.schedule.plan(index + offset) for offset in range(len(tokens)))
    return StepRow(row.number, tokens, row.num_positions, plans)


def prompt_end(row: Row) -> StepRow:
    """Return the last token of the row's prompt, whose logits yield the row's first token."""
    prompt, plans = row.request.prompt_token_ids, row.schedule.prompt_plans
    plan = plans[0 if len(prompt) == 1 else -1]  # a prompt's first token runs all layers
    return StepRow(row.number, prompt[-1:], len(prompt) - 1, (plan,))
