"""The engines of a bundle: embed, layers, head, one after the other.

The runtime knows tensors by role only: each engine is given what its spec asks for. Bypassing a
layer is not calling it. Those of ``host.py`` run at once on numpy arrays, those of ``device.py``
are enqueued on a device; `SlotStitcher` steps rows through them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence

from ...engines.backends.session import Binding, EngineSession
from ...engines.manifest import TensorRole
from ...engines.memory import Array, Tensor
from ..kv.cache import KVCache

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
    def close(self) -> None:
        """Free all bindings and graphs; nothing may be run afterwards."""


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
