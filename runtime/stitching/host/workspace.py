"""Workspace: the memory of passes on the host, and the engines that are bound to it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ....engines.backends.session import Binding, EngineSession
from ....engines.manifest import TensorRole
from ....engines.memory import Array
from ..drafts import DraftEngines
from ..protocol import bind
from .bindings import LayerBindings
from .buffers import StepBuffers


class Workspace:
    """Two sets of buffers for passes over up to ``max_tokens`` tokens, and what is bound to them.

    Embedding and heads work on ``whole``; layers too, or on ``gathered`` where their rows are.
    It outlives calls, and so do its bindings, which are made on first use; ``session`` returns a
    layer's engine.
    """

    def __init__(
        self,
        embed: EngineSession,
        head: EngineSession,
        drafts: DraftEngines | None,
        max_tokens: int,
        session: Callable[[int], EngineSession],
    ) -> None:
        self._embed, self._head = embed, head
        self._drafts = drafts
        self.max_tokens = max_tokens
        self.whole = StepBuffers(embed.spec, head.spec, max_tokens)
        self.gathered = StepBuffers(embed.spec, head.spec, max_tokens)
        self.layers = LayerBindings(session, self.whole, self.gathered)
        self.head_positions = np.zeros(max_tokens, np.int64)
        self._narrow_logits: Array | None = None  # float32 [max_tokens, N], of the narrow head
        self._ends: dict[int, tuple[Binding, Binding]] = {}  # by tokens of a pass
        self._draft_heads: dict[tuple[int, int], Binding] = {}  # by tokens, chosen ones

    def ends(self, tokens: int) -> tuple[Binding, Binding]:
        """Return embedding and head, bound to the first ``tokens`` tokens."""
        if tokens not in self._ends:
            tensors = self.whole.tensors(tokens)
            self._ends[tokens] = (bind(self._embed, tensors), bind(self._head, tensors))
        return self._ends[tokens]

    def draft_head(self, tokens: int, chosen: int) -> Binding:
        """Return the head of drafts for ``chosen`` of the first ``tokens`` tokens.

        It is the bundle's narrow head, or the model's own without one. The positions are read from
        ``head_positions`` int64 when it runs, and the results are `draft_logits`.
        """
        key = tokens, chosen
        if key not in self._draft_heads:
            tensors = {
                **self.whole.tensors(tokens),
                TensorRole.ROW_POSITIONS: self.head_positions[:chosen],
                TensorRole.LOGITS: self.draft_logits[:chosen],
            }
            self._draft_heads[key] = bind(self._narrow_head or self._head, tensors)
        return self._draft_heads[key]

    @property
    def draft_logits(self) -> Array:
        """The logits float32 [max_tokens, N] of the tokens that `draft_head` scores."""
        narrow = self._narrow_head
        if narrow is None:
            return self.whole.logits
        if self._narrow_logits is None:
            width = narrow.spec.tensor(TensorRole.LOGITS).shape[-1]
            self._narrow_logits = np.zeros((self.max_tokens, int(width)), np.float32)
        return self._narrow_logits

    def close(self) -> None:
        """Release all bindings."""
        self.layers.close()
        for ends in self._ends.values():
            for binding in ends:
                binding.release()
        for head in self._draft_heads.values():
            head.release()
        self._ends.clear()
        self._draft_heads.clear()

    @property
    def _narrow_head(self) -> EngineSession | None:
        return None if self._drafts is None else self._drafts.head
