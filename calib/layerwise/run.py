"""A run of real texts through a model, one engine at a time."""

from __future__ import annotations

from abc import ABC, abstractmethod

from ...engines.host.events import Events
from ...engines.manifest import EngineKind
from ...exporter.architecture.weights import engine_name
from .engines import load_engine
from .plan import LayerwisePlan
from .texts import HiddenStates, PackedTexts


class LayerwiseRun(ABC):
    """Carries hidden states from engine to engine: ``observed`` texts, and ``exact`` held-out ones.

    A subclass says what is done with each engine; it advances both, so that ``exact`` has the
    losses of the float32 model at the end.
    """

    def __init__(self, plan: LayerwisePlan) -> None:
        self.model, self.reader = plan.model, plan.checkpoint.reader
        texts, held_out = (
            PackedTexts(examples, plan.schedule, plan.config.batch_tokens)
            for examples in (plan.observed, plan.held_out)
        )
        embedding = load_engine(EngineKind.EMBED, self.model, self.reader)
        self.observed = HiddenStates.embed(texts, embedding)
        self.exact = HiddenStates.embed(held_out, embedding)

    @abstractmethod
    def run_engine(self, kind: EngineKind, index: int | None) -> None:
        """Work on layer ``index``, or on the head, whose index is None, and run it."""

    def run_engines(self, stage: str, events: Events) -> None:
        """Run all layers, then the head."""
        events.stage(stage, self.model.num_layers + 1)
        for index in (*range(self.model.num_layers), None):
            kind = EngineKind.HEAD if index is None else EngineKind.LAYER
            self.run_engine(kind, index)
            events.advance(engine_name(kind, index))
