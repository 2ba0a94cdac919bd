"""The engines of a bundle on a device, and what their prompts and steps keep there."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence

from ....engines.backends.device import Device, DeviceMemory
from ....engines.backends.session import EngineSession
from ....engines.memory import Array
from ...kv.cache import KVCache
from ..protocol import Stitcher
from .buffers import DeviceBuffers
from .graphs import GraphCapture
from .prompts import DevicePrompts, LayerSessions, mask_capacity
from .steps import DeviceEngines, DeviceSteps

# Capacities of slots whose steps are kept: calls of other lengths in between don't cost those of
# the calls around them.
_KEPT_CAPACITIES = 4


class DeviceStitcher(Stitcher):
    """Engines that enqueue on one device; `DeviceSlotStitcher` runs these.

    ``layers(bucket)`` returns the layers' sessions for one static KV capacity, or for any (None).
    ``padded_rows(n)``: rows that a step of n rows runs on. Memory is allocated at construction and
    with the first step of a capacity, but for prompts, whose buffers grow with the longest call.
    """

    def __init__(
        self,
        memory: DeviceMemory,
        embed: EngineSession,
        layers: LayerSessions,
        head: EngineSession,
        candidates: EngineSession,
        max_rows: int,
        padded_rows: Callable[[int], int],
    ) -> None:
        self.memory = memory
        self.device: Device = memory.device
        self.embed = embed
        self.layers = layers
        self.head = head
        self.candidates = candidates
        self.max_rows = max_rows
        self.padded_rows = padded_rows
        self.buffers = DeviceBuffers(memory, embed.spec, head.spec, candidates.spec, max_rows)
        self.prompts = DevicePrompts(memory, embed, layers, head, self.buffers)
        self.capture = GraphCapture(self.device)
        self._steps: OrderedDict[tuple[int, int | None], DeviceSteps] = OrderedDict()

    @property
    def num_graphs(self) -> int:
        """Steps that are kept as graphs."""
        return sum(len(steps.graphs) for steps in self._steps.values())

    def steps(self, capacity: int, bucket: int | None) -> DeviceSteps:
        """Steps over slots of ``capacity`` positions; those of the last few are kept."""
        key = capacity, bucket
        if key not in self._steps:
            engines = DeviceEngines(
                self.memory, self.embed, self.layers(bucket), self.head, self.candidates
            )
            self._steps[key] = DeviceSteps(
                engines,
                self.buffers,
                self.capture,
                max_rows=self.max_rows,
                padded_rows=self.padded_rows,
                capacity=capacity,
                mask=mask_capacity(self.layers, bucket),
            )
        self._steps.move_to_end(key)
        if len(self._steps) > _KEPT_CAPACITIES:
            self._steps.popitem(last=False)[1].clear()
        return self._steps[key]

    def close(self) -> None:
        """See Stitcher."""
        for steps in self._steps.values():
            steps.clear()
        self._steps.clear()

    def score(
        self,
        cache: KVCache,
        tokens: Sequence[int],
        active_lengths: Sequence[int],
        positions: Sequence[int],
        chunk: int,
    ) -> Iterator[Array]:
        """See Stitcher."""
        return self.prompts.score(cache, tokens, active_lengths, positions, chunk)
