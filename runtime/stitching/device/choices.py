"""Guesses of the tokens that the host is about to draw, so that the device need not wait."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ....engines.backends.choice import DRAWS, NUM_COLUMNS
from ....engines.backends.device import DeviceEvent, DeviceMemory
from ....engines.backends.session import EngineSession
from ....engines.manifest import TensorRole
from ....engines.memory import ITEM_BYTES, Array, Tensor
from ...tokens.drawing import TokenDraw
from ...tokens.logits import CandidateLogits
from .buffers import CandidateResults, Field, Staging
from .steps import GraphCapture, StepGraphs, StepPart

_MOST_PAUSED = 31  # steps


@dataclass(frozen=True)
class ComingChoice:
    """Guesses of the tokens after a step, and its logits; valid until the next step but one."""

    done: DeviceEvent
    tokens: Array  # int64 [max_rows, 1], by the rows' indices in the step
    logits: CandidateLogits


class DeviceChoice:
    """Chooses the tokens after a step as the host will, and copies the logits that it may need.

    The next step overwrites a step's logits before the host has drawn from them. If candidates
    don't decide, the host reads all logits of a row, so those of the rows that draw are copied
    first.
    """

    def __init__(
        self,
        memory: DeviceMemory,
        session: EngineSession,
        results: CandidateResults,
        max_rows: int,
        padded_rows: Callable[[int], int],
    ) -> None:
        self._device = memory.device
        self._session = session
        self._results = results
        self._padded_rows = padded_rows
        self._draws: Staging[str] = Staging(memory, copies=2)
        self._draws.lay_out({"draws": Field("float32", (max_rows, NUM_COLUMNS))})
        self._chosen: Staging[str] = Staging(memory, copies=2)
        self._chosen.lay_out({"tokens": Field("int64", (max_rows, 1))})
        logits = results.tensors(max_rows)
        self._logits = logits[TensorRole.LOGITS]
        self._last_candidate = logits[TensorRole.TOP_TOKEN_IDS].shape[1] - 1
        self._copies = [self._device.pinned(self._logits.nbytes) for _ in range(2)]
        self._events = [self._device.event() for _ in range(2)]
        self._turn = 0
        self._graphs = StepGraphs(self._device, GraphCapture(self._device))

    def token_address(self, index: int) -> int:
        """Return the address of the token, int64, chosen after a row of the step."""
        return self._chosen.device["tokens"].address + index * ITEM_BYTES["int64"]

    def enqueue(self, draws: Mapping[int, TokenDraw], logits: CandidateLogits) -> ComingChoice:
        """Enqueue the choice for some rows, by index, of the step that was enqueued last.

        ``logits`` are those that the step will leave.
        """
        self._turn = 1 - self._turn
        self._draws.turn()
        self._chosen.turn()
        host = self._draws.host["draws"]
        host[...] = 0
        host[list(draws)] = list(draws.values())
        np.minimum(host[:, -1], self._last_candidate, out=host[:, -1])
        self._draws.upload()
        first, last = min(draws), max(draws)
        self._graphs.enqueue([self._part(self._padded_rows(last + 1))])
        self._chosen.download()
        copied = self._copy_logits(first, last)

        def fetch(index: int) -> Array:
            return copied[index - first] if first <= index <= last else logits.fetch(index)

        event = self._events[self._turn]
        event.record()
        return ComingChoice(event, self._chosen.host["tokens"], replace(logits, fetch=fetch))

    def close(self) -> None:
        """Destroy all graphs and bindings."""
        self._graphs.clear()

    def _copy_logits(self, first: int, last: int) -> NDArray[np.float32]:
        source = self._logits[first : last + 1]
        target = self._copies[self._turn][: source.nbytes].view(np.float32).reshape(source.shape)
        self._device.copy_to_host(target, source.address)
        return target

    def _part(self, rows: int) -> StepPart:
        parts = self._graphs.parts
        if rows not in parts:
            tensors: dict[TensorRole, Tensor] = dict(self._results.tensors(rows))
            tensors[DRAWS] = self._draws.device["draws"][:rows]
            tensors[TensorRole.INPUT_IDS] = self._chosen.device["tokens"][:rows]
            parts[rows] = StepPart(rows, [self._graphs.bind(self._session, tensors)])
        return parts[rows]


@dataclass
class Confidence:
    """Decides whether a step may begin on guesses: if many are wrong, waiting costs less.

    A wrong guess of any row costs the step that began on it. Each wrong step doubles the pause, and
    each right one shortens it by a quarter.
    """

    _pause: int = 0  # steps; doubled by the next wrong guess
    _waiting: int = 0

    def may_guess(self) -> bool:
        """Return True if the next step may begin on guesses; each call counts as a step."""
        if self._waiting == 0:
            return True
        self._waiting -= 1
        return False

    def learn(self, *, right: bool) -> None:
        """Record whether a step's rows feed the tokens on which it had begun."""
        if right:
            self._pause = self._pause * 3 // 4
        else:
            self._pause = self._waiting = min(2 * self._pause + 1, _MOST_PAUSED)
