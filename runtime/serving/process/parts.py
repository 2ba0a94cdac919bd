"""Log-probabilities between processes: each is sent once, and no message takes long to read.

Reading a message is one call that holds the interpreter's lock, and the server's event loop with
it: 4.5 µs for each log-probability, so 200 ms for those of 2,048 tokens and 20 alternatives.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain

from ...scheduling.stats import EngineStats
from ...tokens.outputs import Logprob, RequestOutput, ScoreOutput, StreamDelta
from ..engine_loop import StepResult
from .messages import ScorePart, Stepped

_MOST = 512  # log-probabilities in one message

Entries = tuple[dict[int, Logprob], ...]


def step_messages(result: StepResult, stats: EngineStats | None) -> Iterator[ScorePart | Stepped]:
    """Make the messages for a step and its figures; texts whose scoring failed are left out."""
    deltas: list[tuple[str, StreamDelta]] = []
    count = 0
    for request_id, delta in result.deltas:
        deltas.append((request_id, delta))
        count += sum(map(len, delta.logprobs or ()))
        if count > _MOST:
            yield Stepped(tuple(deltas), (), ())
            deltas, count = [], 0
    scored = []
    for one in result.scored:
        if one.output is not None:
            yield from _score_parts(one.request_id, one.output.top_logprobs or ())
            scored.append((one.request_id, _without_alternatives(one.output)))
    ended = tuple(map(_without_logprobs, result.ended))
    if deltas or stats is not None:
        yield Stepped(tuple(deltas), ended, tuple(scored), stats)


class LogprobParts:
    """Puts the log-probabilities of results together again, from what came before them."""

    def __init__(self) -> None:
        self._parts: dict[str, dict[int, list[Entries]]] = {}  # by request and completion

    def take(self, message: ScorePart | Stepped) -> None:
        """Keep what a message has of results to come."""
        if isinstance(message, ScorePart):
            self._add(message.request_id, 0, message.top_logprobs)
            return
        for request_id, delta in message.deltas:
            if delta.logprobs:
                self._add(request_id, delta.index, delta.logprobs)

    def completed(self, output: RequestOutput) -> RequestOutput:
        """Return the result of a request with its log-probabilities, and forget these."""
        parts = self._parts.pop(output.request_id, {})
        outputs = tuple(
            one if one.logprobs is None else replace(one, logprobs=_joined(parts, one.index))
            for one in output.outputs
        )
        return replace(output, outputs=outputs)

    def scored(self, request_id: str, output: ScoreOutput) -> ScoreOutput:
        """Return the result of a scored text with its alternatives, and forget these."""
        parts = self._parts.pop(request_id, {})
        if output.top_logprobs is None:
            return output
        return replace(output, top_logprobs=_joined(parts, 0))

    def clear(self) -> None:
        """Forget all: the worker has died."""
        self._parts.clear()

    def _add(self, request_id: str, index: int, entries: Entries) -> None:
        self._parts.setdefault(request_id, defaultdict(list))[index].append(entries)


def _score_parts(request_id: str, entries: Entries) -> Iterator[ScorePart]:
    tokens = max(1, _MOST // max(map(len, entries), default=1))
    for start in range(0, len(entries), tokens):
        yield ScorePart(request_id, entries[start : start + tokens])


def _without_logprobs(output: RequestOutput) -> RequestOutput:
    """Leave out what deltas have said; () marks what is to be put back."""
    outputs = tuple(
        one if one.logprobs is None else replace(one, logprobs=()) for one in output.outputs
    )
    return replace(output, outputs=outputs)


def _without_alternatives(output: ScoreOutput) -> ScoreOutput:
    return output if output.top_logprobs is None else replace(output, top_logprobs=())


def _joined(parts: dict[int, list[Entries]], index: int) -> Entries:
    found: Iterable[Entries] = parts.get(index, ())
    return tuple(chain.from_iterable(found))
