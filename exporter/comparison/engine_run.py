"""Runs one engine of one side on its calls, with one of Polygraphy's runners."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from polygraphy.comparator import Comparator, IterationResult, RunResults
from polygraphy.exception import PolygraphyException

from ...engines.backends.ort import RUN_ERRORS
from ...engines.errors import SkipDecError
from ...engines.manifest import EngineSpec
from ...engines.memory import Array
from .inputs import EngineCall, Inputs, RepeatedInputs
from .sides import Side


@dataclass
class EngineRun:
    """One engine on one side; ``calls`` are those that it was given so far."""

    side: Side
    name: str
    inputs: Inputs
    absorbs: bool  # whether the inputs hear of the outputs
    graph: bytes | None = None
    calls: list[EngineCall] = field(default_factory=list)

    @property
    def spec(self) -> EngineSpec:
        """The engine's."""
        return self.side.engines[self.name]

    @property
    def positions(self) -> int:
        """The most that a call reaches."""
        return self.inputs.positions(self.spec)

    def again(self, graph: bytes) -> EngineRun:
        """The same calls of ``graph`` in place of the engine's own."""
        inputs = RepeatedInputs(tuple(self.calls), self.positions)
        return EngineRun(self.side, self.name, inputs, absorbs=False, graph=graph)

    def results(self) -> Iterator[RunResults]:
        """What counts of the outputs of each call: by role, inner tensors by name."""
        spec, positions = self.spec, self.positions
        capacity = self.side.capacity(spec, positions)
        runner = self.side.runner(spec, positions, self.graph)

        def feeds() -> Iterator[dict[str, Array]]:
            for call in self.inputs.calls(spec):
                self.calls.append(call)
                self.side.prepare(runner, call.num_tokens)
                yield call.feed(spec, capacity)

        try:
            for results in Comparator.run([runner], feeds(), streaming=True):
                yield self._counted(dict(results[0][1][0].items()))
        except (PolygraphyException, *RUN_ERRORS) as error:
            raise SkipDecError(
                f"engine {self.name}", f"{self.side.name} can't run it: {error}"
            ) from error

    def _counted(self, outputs: Mapping[str, Array]) -> RunResults:
        call = self.calls[-1]
        roles = {tensor.name: tensor.role for tensor in self.spec.outputs}
        if self.absorbs:
            by_role = {roles[name]: array for name, array in outputs.items()}
            self.inputs.absorb(call, by_role)
        counted = {
            str(roles.get(name, name)): call.counted(roles.get(name), array)
            for name, array in outputs.items()
        }
        kept = {name: array for name, array in counted.items() if array is not None}
        return RunResults([(self.side.name, [IterationResult(kept, runner_name=self.side.name)])])
