"""The interface of a bundle's engines to a running batch.

`Stitcher` holds the engines: embedding, layers, head. `SlotStitcher` runs prompts and passes of a
running batch through them. ``host/`` implements both for engines that run synchronously on numpy
arrays, ``device/`` for engines that are enqueued on a device. To bypass a layer is not to call it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from ...engines.backends.session import Binding, EngineSession
from ...engines.manifest import TensorRole
from ...engines.memory import Array, Buffer, Tensor
from ..schedule import LayerPlan
from ..tokens.drawing import TokenDraw
from ..tokens.logits import StepLogits
from .drafts import DraftEngines

LayerCaches = Callable[[int], tuple[Tensor, Tensor]]
"""Returns the key and value [rows, N, T, W] to which a layer writes."""


class StepRow(NamedTuple):
    """The tokens, one or several, that a row feeds in one pass, each with the layers that it runs.

    ``tokens[i]`` has position ``position + i`` and runs ``plans[i]``, which names no layer that
    ``plans[i - 1]`` bypasses. If the only token is not known yet, ``draw`` says how it is drawn;
    None means the most probable one.
    """

    row: int
    tokens: tuple[int, ...]
    position: int
    plans: tuple[LayerPlan, ...]
    draw: TokenDraw | None = None

    @property
    def plan(self) -> LayerPlan:
        """The layers of the first token; later tokens run these or fewer."""
        return self.plans[0]


def active_counts(row: StepRow, num_layers: int) -> list[int]:
    """Return how many of the row's tokens, from the first on, run each layer."""
    counts = [0] * num_layers
    if row.plans[0] is row.plans[-1]:  # the common case; plans only shrink
        for layer in row.plan:
            counts[layer] = len(row.plans)
        return counts
    for plan in row.plans:
        for layer in plan:
            counts[layer] += 1
    return counts


def feeding_problem(row: StepRow, reserved: Callable[[int], int]) -> str | None:
    """Return why the row's tokens can't be fed in one pass, or None if they can.

    ``reserved(layer)``: the positions that the row has reserved in a layer.
    """
    if not row.tokens or len(row.tokens) != len(row.plans):
        return f"feeds {len(row.tokens)} tokens with {len(row.plans)} plans; each has one"
    for before, after in pairwise(row.plans):
        if before is not after and not set(after).issubset(before):
            return "feeds a token to a layer that the token before it bypasses"
    for index, plan in enumerate(row.plans):
        if index + 1 < len(row.plans) and row.plans[index + 1] is plan:
            continue  # the last token of a plan reaches furthest
        held = min(map(reserved, plan), default=0)
        if row.position + index >= held:
            return (
                f"feeds a token at position {row.position + index}; "
                f"a layer of its plan holds {held} positions of the row"
            )
    return None


class DraftRow(NamedTuple):
    """One token that a row feeds in a draft step, at ``position``."""

    row: int
    token: int
    position: int


class Stitcher(ABC):
    """All engines of a bundle; runs prompts and scored texts, whose logits are float32.

    The plain causal mask is exact everywhere, because depth never grows along a row: the tokens
    that run layer l are the first ``active_lengths[l]``. ``bucket`` is the capacity of the caches
    if it is static in the engines. ``drafts`` are the bundle's engines for drafts, loaded on first
    use, or None; once its trained drafts are loaded, prompts and passes keep the states that these
    read.
    """

    drafts: DraftEngines | None = None

    @property
    def reads(self) -> tuple[int, ...]:
        """The numbers of layers after which states are kept for drafts; empty without any."""
        return () if self.drafts is None else self.drafts.reads

    @abstractmethod
    def prefill(
        self,
        prompts: Sequence[Sequence[int]],
        active_lengths: Sequence[Sequence[int]],
        bucket: int | None,
        caches: LayerCaches,
        after: Callable[[int], None],
    ) -> StepLogits:
        """Run prompts into empty caches; layer l runs the first ``active_lengths[l][r]`` of row r.

        A layer writes to ``caches(layer)``; then ``after(layer)`` is called. Returns the logits of
        each prompt's last token, valid until the next call.
        """

    @abstractmethod
    def chunk(
        self,
        tokens: Sequence[int],
        start: int,
        active_lengths: Sequence[int],
        bucket: int | None,
        caches: LayerCaches,
        *,
        is_last: bool,
    ) -> StepLogits | None:
        """Run ``tokens`` of one prompt, from position ``start`` on, on its caches.

        Layer l runs the prompt's first ``active_lengths[l]`` tokens. With int8 products the result
        is bitwise equal to running the whole prompt at once. If this is the prompt's last chunk,
        returns the logits of its last token, valid until the next call.
        """

    @abstractmethod
    def score(
        self,
        tokens: Sequence[int],
        active_lengths: Sequence[int],
        bucket: int | None,
        caches: LayerCaches,
        positions: Sequence[int],
        chunk: int,
    ) -> Iterator[Array]:
        """Teacher-force one row, each layer on the prefix of tokens that are active in it.

        Layers may share their caches. Yields logits [<= chunk, V] of ``positions``.
        """

    def forget(self, memory: Buffer) -> None:  # noqa: B027  (devices hold addresses)
        """Drop all references to a buffer that no call uses and that is about to be freed."""

    def trim(self) -> None:  # noqa: B027  (devices keep no such memory)
        """Free memory kept for later passes; no slots may be open."""

    @abstractmethod
    def close(self) -> None:
        """Free all bindings and graphs; nothing may be run afterwards."""


def bind(session: EngineSession, tensors: Mapping[TensorRole, Tensor]) -> Binding:
    """Bind the ``tensors`` whose roles the engine has."""
    wanted = session.roles
    return session.bind({role: tensor for role, tensor in tensors.items() if role in wanted})


def run_once(session: EngineSession, tensors: Mapping[TensorRole, Tensor]) -> None:
    """Bind the ``tensors`` whose roles the engine has, run it once and release them."""
    binding = bind(session, tensors)
    binding.run()
    binding.release()


def cache_tensors(key: Tensor, value: Tensor) -> dict[TensorRole, Tensor]:
    """Return one buffer as past and present, so that the engine appends in place."""
    return {
        TensorRole.PAST_KEY: key,
        TensorRole.PRESENT_KEY: key,
        TensorRole.PAST_VALUE: value,
        TensorRole.PRESENT_VALUE: value,
    }
