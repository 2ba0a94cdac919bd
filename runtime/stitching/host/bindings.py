"""LayerBindings: layers bound to slots, kept as long as the slots' memory."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from ....engines.backends.session import Binding, EngineSession
from ....engines.memory import Buffer, address_of
from ...kv.cache import SlotCache
from ..protocol import bind, cache_tensors
from .buffers import StepBuffers


class LayerBindings:
    """Bindings of layers to two sets of buffers and to slots, created on first use.

    A `BufferPool` gives a call the memory of the call before, so its bindings can be reused: they
    last until the pool frees one of their buffers (`forget`).
    """

    def __init__(
        self, session: Callable[[int], EngineSession], whole: StepBuffers, gathered: StepBuffers
    ) -> None:
        """``session`` returns a layer's engine; layers use ``gathered`` for gathered rows."""
        self._session = session
        self._whole, self._gathered = whole, gathered
        self.routes: dict[Hashable, Any] = {}  # contain bindings, and are dropped with any of them
        self._bound: dict[tuple[int, ...], Binding] = {}
        self._by_address: dict[int, list[tuple[int, ...]]] = defaultdict(list)

    def __len__(self) -> int:
        """Return the number of bindings."""
        return len(self._bound)

    def calls(
        self,
        cache: SlotCache,
        layer: int,
        counts: Sequence[int],
        firsts: Sequence[int],
        *,
        is_split: bool,
        is_gathered: bool,
    ) -> list[Binding]:
        """Return the calls of a layer for its first slots, with ``counts`` tokens each.

        It is one call with as many tokens per slot as the longest has, or, if ``is_split``, one
        call per slot, whose tokens begin at ``firsts``. ``is_gathered``: it reads gathered tokens.
        """
        shapes = (
            [(slot, 1, *tokens) for slot, tokens in enumerate(zip(counts, firsts, strict=True))]
            if is_split
            else [(0, len(counts), max(counts), 0)]
        )
        return [self._call(cache, layer, shape, is_gathered=is_gathered) for shape in shapes]

    def _call(
        self, cache: SlotCache, layer: int, shape: tuple[int, int, int, int], *, is_gathered: bool
    ) -> Binding:
        """Return a call of ``shape``: its first slot, its slots, their tokens, and the first."""
        slot, rows, tokens, first_token = shape
        key, value = cache.first(layer, slot + rows)
        addresses = address_of(key), address_of(value)
        call = (layer, *shape, int(is_gathered), *addresses, key.shape[2])
        found = self._bound.get(call)
        if found is None:
            buffers = self._gathered if is_gathered else self._whole
            tensors = buffers.tensors(rows, tokens, first_row=slot, first_token=first_token)
            caches = cache_tensors(key[slot:], value[slot:])
            found = self._bound[call] = bind(self._session(layer), {**tensors, **caches})
            for address in addresses:
                self._by_address[address].append(call)
        return found

    def forget(self, memory: Buffer) -> None:
        """Release the bindings to a buffer that is about to be freed."""
        self.routes.clear()
        for call in self._by_address.pop(address_of(memory), ()):
            if binding := self._bound.pop(call, None):
                binding.release()

    def close(self) -> None:
        """Release all bindings."""
        self.routes.clear()
        for binding in self._bound.values():
            binding.release()
        self._bound.clear()
        self._by_address.clear()
