"""Checks of engines that only drafts run: the draft layer and the narrow head."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from torch import nn
from typing_extensions import override

from ...engines.backends.session import EngineBackend
from ...engines.bundle import EngineBundle
from ...engines.errors import VerificationError
from ...engines.manifest import DraftHead, TensorRole
from ...engines.memory import Array
from ..architecture.decoder import HEAD_WEIGHT
from ..checkpoint.checkpoint import Checkpoint
from ..checkpoint.draft_layer import TrainedDraftLayer, read_draft_layer
from ..graphs.narrow import narrow_shapes
from .calls import ModuleCalls, SessionCalls
from .engines import check_engine, weight_problem
from .reference import Reference, ReferenceBuilder
from .report import EngineCheck
from .tolerance import Tolerance

_ROWS = 9  # hidden states on which both heads are compared bit for bit
_HEAD_PREFIX = HEAD_WEIGHT.removesuffix("weight")  # tensors with an entry per token


def open_draft_layer(
    bundle: EngineBundle, directory: Path | None, checkpoint: Checkpoint
) -> TrainedDraftLayer | None:
    """Return the draft layer in ``directory``, which ``bundle`` should have; None without one.

    Raises VerificationError if the bundle has none, or one that reads other states or scores other
    tokens, and the errors of `read_draft_layer`.
    """
    if directory is None:
        return None
    built = bundle.manifest.trained_draft
    if built is None:
        raise VerificationError(str(bundle.path), "has no draft layer; leave --draft-layer out")
    layer = read_draft_layer(directory, checkpoint)
    if (layer.reads, layer.token_ids) != (built.reads, built.token_ids):
        raise VerificationError(
            str(bundle.path),
            f"has a draft layer that reads other states, or scores other tokens, than that of "
            f"{directory}",
        )
    return layer


def check_draft_head(
    bundle: EngineBundle,
    backend: EngineBackend,
    head: DraftHead,
    stored: Callable[[str], Array | None],
    reference: Reference,
    tolerance: Tolerance,
    seed: int,
) -> EngineCheck:
    """Compare the narrow head with its module, and with the whole head bit for bit.

    ``stored`` reads the initialisers of its graph.
    """
    builder = ReferenceBuilder(reference, head.engine.kind, None)
    shapes = narrow_shapes(reference.model, reference.precision, head.tokens)
    problems = []
    for name, array in builder.tensors():
        is_cut = name.startswith(_HEAD_PREFIX)
        expected = array[: shapes.get(name, (head.tokens,))[0]] if is_cut else array
        problems.append(weight_problem(name, stored(name), expected))
    narrow = SessionCalls(backend.load(bundle, head.engine))
    check = check_engine(
        head.engine,
        narrow,
        _FirstTokens(builder.module, head.tokens),
        reference.model,
        tolerance,
        seed,
        tuple(problem for problem in problems if problem is not None),
    )
    if check.failure is None and not _are_equal(bundle, backend, narrow, head, seed):
        failure = "its logits are not, bit for bit, those of the head's first tokens"
        return check.model_copy(update={"failure": failure})
    return check


def _are_equal(
    bundle: EngineBundle, backend: EngineBackend, narrow: SessionCalls, head: DraftHead, seed: int
) -> bool:
    whole = SessionCalls(backend.load(bundle, bundle.manifest.head))
    hidden = head.engine.tensor(TensorRole.HIDDEN_STATES)
    rng = np.random.default_rng(seed)
    states = rng.standard_normal((1, _ROWS, int(hidden.shape[-1]))).astype(hidden.dtype)
    for rows in (1, _ROWS):  # kernels depend on the number of rows
        indices = np.arange(rows)
        expected = np.ascontiguousarray(whole.head(states, indices)[:, : head.tokens])
        if narrow.head(states, indices).tobytes() != expected.tobytes():
            return False
    return True


class _FirstTokens(ModuleCalls):
    """A head's module that returns the logits of the first tokens only."""

    def __init__(self, module: nn.Module, tokens: int) -> None:
        super().__init__(module)
        self._tokens = tokens

    @override
    def head(self, hidden_states: Array, row_positions: Array) -> Array:
        return super().head(hidden_states, row_positions)[:, : self._tokens]
