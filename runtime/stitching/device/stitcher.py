"""DeviceStitcher: the engines of a bundle on a device, and the memory of prompts and steps."""

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

# Steps are kept for so many capacities of slots, so that a call of another length in between does
# not drop them.
_KEPT_CAPACITIES = 4


class DeviceStitcher(Stitcher):
    """Holds engines that enqueue on one device, for `DeviceSlotStitcher`.

    ``layers(bucket)`` returns the layers' sessions for one static KV capacity, or for any (None). A
    step of n rows is padded to ``padded_rows(n)``. Memory is allocated at construction and with the
    first step of a capacity; buffers of prompts grow with the longest call.
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
        """The number of steps that are kept as graphs."""
        return sum(len(steps.graphs) for steps in self._steps.values())

    def steps(self, capacity: int, bucket: int | None) -> DeviceSteps:
        """Return the steps over slots of ``capacity`` positions; the last few are kept."""
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
