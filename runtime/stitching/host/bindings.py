"""LayerBindings: layers bound to a running batch's slots."""

from __future__ import annotations

from ....engines.backends.session import Binding
from ...kv.cache import SlotCache
from ..protocol import bind, cache_tensors
from .stitcher import HostStitcher
from .workspace import Workspace


class LayerBindings:
    """Bindings of layers to the slots of ``cache``, made on first use.

    A layer's bindings last until its caches move.
    """

    def __init__(self, engines: HostStitcher, cache: SlotCache, workspace: Workspace) -> None:
        self.engines = engines
        self.workspace = workspace
        self._cache = cache
        self._bound: dict[tuple[int, ...], tuple[int, Binding]] = {}  # and caches' generations

    def __len__(self) -> int:
        """Return the number of bindings."""
        return len(self._bound)

    def layer(
        self,
        layer: int,
        rows: int,
        tokens: int = 1,
        *,
        slot: int = 0,
        first_token: int = 0,
        is_part: bool,
    ) -> Binding:
        """Return the layer bound to ``rows`` slots from ``slot`` on, of ``tokens`` tokens each.

        ``is_part``: it works on tokens that were gathered.
        """
        generation = self._cache.generation(layer)
        key = (layer, rows, tokens, slot, first_token, is_part)
        found = self._bound.get(key)
        if found is None or found[0] != generation:
            if found is not None:
                found[1].release()
            buffers = self.workspace.part if is_part else self.workspace.whole
            places = buffers.tensors(rows, tokens, first_row=slot, first_token=first_token)
            held = self._cache.first(layer, slot + rows)
            caches = cache_tensors(*(tensor[slot:] for tensor in held))
            binding = bind(self.engines.session(layer), {**places, **caches})
            found = self._bound[key] = generation, binding
        return found[1]

    def close(self) -> None:
        """Release all bindings to slots, whose buffers are about to be freed."""
        for _, binding in self._bound.values():
            binding.release()
        self._bound.clear()
