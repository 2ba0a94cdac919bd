"""Graphs: device work that is captured once and launched again, per step or part of a step."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from ....engines.backends.device import Device, DeviceGraph
from ....engines.errors import SkipDecError

_LOGGER = logging.getLogger(__name__)

# Steps that are kept as graphs of their own. Of the padded row counts of a running batch's layers,
# which never grow from one token of a row to its next, dozens occur.
MOST_GRAPHS = 64
_MOST_SEEN = 4 * MOST_GRAPHS


class GraphCapture:
    """Captures graphs. After a first failure, it logs the reason and captures no more."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self.is_possible = True

    def capture(self, enqueue: Callable[[], None]) -> DeviceGraph | None:
        """Return a graph of ``enqueue``, which has run once before; None if capturing fails."""
        if not self.is_possible:
            return None
        try:
            self._device.begin_capture()
            try:
                enqueue()
            finally:
                graph = self._device.end_capture()
        except SkipDecError as error:
            _LOGGER.warning("steps are enqueued engine by engine, not as graphs: %s", error)
            self.is_possible = False
            return None
        return graph


@dataclass(eq=False)
class StepPart:
    """Work that a step enqueues together: its beginning, a layer, or its end."""

    key: Hashable  # of two parts with one key, either does
    work: Sequence[Callable[[], None]]
    graph: DeviceGraph | None = None

    def enqueue(self) -> None:
        """Enqueue all of it, piece by piece."""
        for piece in self.work:
            piece()


class StepGraphs:
    """Runs steps made of parts: as one graph each, the 64 that were used last; others part by part.

    A step is captured when it first runs; once there are 64, when it runs a second time. The parts
    of the others are captured one by one, as a step that is seldom seen has parts that are not.
    """

    def __init__(self, device: Device, capture: GraphCapture) -> None:
        self._device = device
        self._capture = capture
        self._steps: OrderedDict[Hashable, DeviceGraph] = OrderedDict()
        self._seen: OrderedDict[Hashable, None] = OrderedDict()
        self._parts: list[StepPart] = []  # that have graphs

    def __len__(self) -> int:
        return len(self._steps)

    def run(self, parts: Sequence[StepPart]) -> None:
        """Run a step and wait for it."""
        key = tuple(part.key for part in parts)
        graph = self._steps.get(key)
        if graph is not None:
            self._steps.move_to_end(key)
            graph.launch()
            self._device.synchronize()
            return
        for part in parts:
            if part.graph is None:
                part.enqueue()
            else:
                part.graph.launch()
        self._device.synchronize()
        if len(self._steps) < MOST_GRAPHS or key in self._seen:
            self._keep(key, parts)
        else:
            self._see(key)
            self._capture_parts(parts)

    def clear(self) -> None:
        """Destroy all graphs; the memory that they refer to may be freed then."""
        for graph in self._steps.values():
            graph.destroy()
        self._steps.clear()
        self._seen.clear()
        for part in self._parts:
            if part.graph is not None:
                part.graph.destroy()
            part.graph = None
        self._parts.clear()

    def _keep(self, key: Hashable, parts: Sequence[StepPart]) -> None:
        def enqueue() -> None:
            for part in parts:
                part.enqueue()

        graph = self._capture.capture(enqueue)
        if graph is None:
            return
        self._seen.pop(key, None)
        self._steps[key] = graph
        if len(self._steps) > MOST_GRAPHS:
            self._steps.popitem(last=False)[1].destroy()

    def _see(self, key: Hashable) -> None:
        self._seen[key] = None
        if len(self._seen) > _MOST_SEEN:
            self._seen.popitem(last=False)

    def _capture_parts(self, parts: Sequence[StepPart]) -> None:
        for part in parts:
            if part.graph is None:
                part.graph = self._capture.capture(part.enqueue)
                if part.graph is not None:
                    self._parts.append(part)
