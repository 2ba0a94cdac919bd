"""Runs the engines that a plan names: embed, layers, head, one after the other.

The runtime knows tensors by role only: each engine is given what its spec asks for. Bypassing a
layer is not calling it. ``host.py`` runs engines at once on numpy arrays, ``device.py`` enqueues
them on a device.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence

from ...engines.backends.session import Binding, EngineSession
from ...engines.manifest import TensorRole
from ...engines.memory import Array, Tensor
from ..kv.cache import KVCache
from ..schedule import LayerPlan
from ..tokens.logits import StepLogits

LayerCaches = Callable[[int], tuple[Tensor, Tensor]]
"""Where a layer writes: key and value [rows, N, T, W]."""


class Stitcher(ABC):
    """All engines of a bundle."""

    @abstractmethod
    def score(
        self,
        cache: KVCache,
        tokens: Sequence[int],
        active_lengths: Sequence[int],
        positions: Sequence[int],
        chunk: int,
    ) -> Iterator[Array]:
        """Teacher-force one row, each layer on the prefix of tokens that are active in it.

        Exact with the plain causal mask: depth never grows along a row, so the tokens that run
        layer l are the first ``active_lengths[l]`` ones. All layers write the cache's scratch pair
        of at least len(tokens) positions. Yields logits float32 [<= chunk, V] of ``positions``.
        """

    @abstractmethod
    def unbind(self) -> None:
        """Drop all references to a cache's buffers; must precede the cache's ``close``."""

    @abstractmethod
    def close(self) -> None:
        """Free all bindings and graphs; nothing may be run afterwards."""


class BatchStitcher(Stitcher):
    """Steps of rows that start together and have one schedule, see `Batch`: those of a device.

    On the host, `SlotStitcher` runs rows that each have their own.
    """

    @abstractmethod
    def decode(
        self, cache: KVCache, plan: LayerPlan, tokens: Sequence[int], positions: Sequence[int]
    ) -> StepLogits:
        """Run one step through the plan's layers: row r reads ``tokens[r]`` at ``positions[r]``.

        Returns the rows' logits, valid until the next call.
        """

    @abstractmethod
    def prefill(
        self,
        cache: KVCache,
        first_row: int,
        prompts: Sequence[Sequence[int]],
        active_lengths: Sequence[Sequence[int]],
    ) -> Array:
        """Run prompts into the cache's rows from ``first_row`` on.

        Layer l runs the first ``active_lengths[l][r]`` tokens of row r: all of them in every live
        layer, at least one in the others, which write the scratch pair. Ragged prompts are padded
        on the right and prefixes cut at the longest; what is computed beyond a row's own length is
        dropped: hidden states stay as the layer below left them, keys and values are never read.
        Returns logits float32 [rows, V] of each prompt's last token, newly allocated.
        """

    @abstractmethod
    def retire(self, cache: KVCache, plan: LayerPlan) -> None:
        """Give back the caches of all layers that ``plan``, and so any later one, bypasses."""


def do_nothing(layer: int) -> None:
    """Where nobody needs to know that ``layer`` has run."""


def bind(session: EngineSession, tensors: Mapping[TensorRole, Tensor]) -> Binding:
    """Bind what the engine asks for and leave the rest."""
    wanted = session.spec.roles
    return session.bind({role: tensor for role, tensor in tensors.items() if role in wanted})


def run_once(session: EngineSession, tensors: Mapping[TensorRole, Tensor]) -> None:
    """Bind what the engine asks for, run it, let go of the tensors."""
    binding = bind(session, tensors)
    binding.run()
    binding.release()


def cache_tensors(key: Tensor, value: Tensor) -> dict[TensorRole, Tensor]:
    """Bind one buffer as past and present: the engine appends in place."""
    return {
        TensorRole.PAST_KEY: key,
        TensorRole.PRESENT_KEY: key,
        TensorRole.PAST_VALUE: value,
        TensorRole.PRESENT_VALUE: value,
    }
