"""Workspace: the memory of passes on the host, and the engines that are bound to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from ....engines.backends.session import Binding, EngineSession
from ....engines.manifest import NUM_JOINED, EngineKind, TensorRole
from ....engines.memory import Array, Tensor
from ..drafts import DraftEngines, TrainedEngines
from ..protocol import bind
from .bindings import LayerBindings
from .buffers import StepBuffers

_MOST_BINDINGS = 1024  # of draft engines; beyond that, all are bound anew


class TrainedMemory:
    """The memory of steps of trained drafts over up to ``max_tokens`` tokens, bound on first use.

    ``kept`` [max_tokens, 3, E] has the states of the last pass, ``read`` [max_tokens, 3, E] those
    that a step reads, and ``made`` [max_tokens, 1, E] the single states computed from them.
    ``joined`` [max_tokens, 2, E] has embeddings and states, from which the layer's input is
    computed into the hidden states of ``whole``. ``logits`` float32 [max_tokens, N].
    """

    def __init__(self, engines: TrainedEngines, whole: StepBuffers, max_tokens: int) -> None:
        self._engines, self._whole = engines, whole
        states, width = whole.hidden_states, whole.hidden_states.shape[-1]
        self.token_ids = np.array(engines.spec.token_ids, np.int64)
        read = (max_tokens, NUM_JOINED[EngineKind.STATES], width)
        self.kept, self.read = np.zeros(read, states.dtype), np.zeros(read, states.dtype)
        self.made = np.zeros((max_tokens, 1, width), states.dtype)
        self.joined = np.zeros((max_tokens, NUM_JOINED[EngineKind.ENTRY], width), states.dtype)
        self.logits = np.zeros((max_tokens, len(self.token_ids)), np.float32)
        self.head_positions = np.zeros(max_tokens, np.int64)
        self._bound: dict[tuple[str, int, int], Binding] = {}  # by engine and tokens

    def states(self, tokens: int) -> Binding:
        """Return the call that computes the first ``tokens`` of ``made`` from ``read``."""
        return self._joining(self._engines.states, self.read, self.made, tokens)

    def entry(self, tokens: int) -> Binding:
        """Return the call that computes as many hidden states from ``joined``."""
        return self._joining(self._engines.entry, self.joined, self._whole.hidden_states, tokens)

    def head(self, tokens: int, chosen: int) -> Binding:
        """Return the head's call for ``chosen`` of ``tokens`` tokens, whose places are an input."""
        tensors = {
            **self._whole.tensors(tokens),
            TensorRole.ROW_POSITIONS: self.head_positions[:chosen],
            TensorRole.LOGITS: self.logits[:chosen],
        }
        return self._call(self._engines.head, tokens, chosen, tensors)

    def close(self) -> None:
        """Release all bindings."""
        for binding in self._bound.values():
            binding.release()
        self._bound.clear()

    def _joining(self, session: EngineSession, given: Array, made: Array, tokens: int) -> Binding:
        tensors: dict[TensorRole, Tensor] = {
            TensorRole.STATES: given[:tokens].reshape(tokens, 1, -1),
            TensorRole.HIDDEN_STATES_OUT: made[:tokens],
        }
        return self._call(session, tokens, 0, tensors)

    def _call(
        self,
        session: EngineSession,
        tokens: int,
        chosen: int,
        tensors: Mapping[TensorRole, Tensor],
    ) -> Binding:
        key = session.spec.name, tokens, chosen
        if key not in self._bound:
            if len(self._bound) >= _MOST_BINDINGS:
                self.close()
            self._bound[key] = bind(session, tensors)
        return self._bound[key]


class Workspace:
    """Two sets of buffers for passes over up to ``max_tokens`` tokens, and their bindings.

    Embedding and heads use ``whole``; layers use it, too, or ``gathered`` if their rows are
    gathered. It outlives calls, and so do its bindings, which are created on first use. ``session``
    returns a layer's engine.
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
        self._narrow_logits: Array | None = None  # float32 [max_tokens, N] of the narrow head
        self._ends: dict[int, tuple[Binding, Binding]] = {}  # by number of tokens in a pass
        self._draft_heads: dict[tuple[int, int], Binding] = {}  # by numbers of tokens, chosen ones
        self._trained: TrainedMemory | None = None

    @property
    def trained(self) -> TrainedMemory:
        """The memory of trained drafts, which the bundle must have."""
        if self._trained is None:
            assert self._drafts is not None, "drafts were resolved against the bundle"
            self._trained = TrainedMemory(self._drafts.trained, self.whole, self.max_tokens)
        return self._trained

    def ends(self, tokens: int) -> tuple[Binding, Binding]:
        """Return embedding and head, bound to the first ``tokens`` tokens."""
        if tokens not in self._ends:
            tensors = self.whole.tensors(tokens)
            self._ends[tokens] = (bind(self._embed, tensors), bind(self._head, tensors))
        return self._ends[tokens]

    def draft_head(self, tokens: int, chosen: int) -> Binding:
        """Return the head of drafts for ``chosen`` of the first ``tokens`` tokens.

        It is the bundle's narrow head, or else the model's own. When it runs, it reads the tokens'
        places from ``head_positions`` int64 and writes `draft_logits`.
        """
        key = tokens, chosen
        if key not in self._draft_heads:
            if len(self._draft_heads) >= _MOST_BINDINGS:
                self._release_draft_heads()
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
        if self._trained is not None:
            self._trained.close()
        for ends in self._ends.values():
            for binding in ends:
                binding.release()
        self._ends.clear()
        self._release_draft_heads()

    def _release_draft_heads(self) -> None:
        for head in self._draft_heads.values():
            head.release()
        self._draft_heads.clear()

    @property
    def _narrow_head(self) -> EngineSession | None:
        return None if self._drafts is None else self._drafts.head
