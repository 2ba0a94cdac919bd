"""Runs real texts through a model, one engine at a time."""

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

    A subclass defines what happens with each engine. It advances both, so that ``exact`` ends with
    the losses of the float32 model.
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
        """Process and run layer ``index``, or the head, whose index is None."""

    def run_engines(self, stage: str, events: Events) -> None:
        """Run all layers, then the head."""
        events.stage(stage, self.model.num_layers + 1)
        for index in (*range(self.model.num_layers), None):
            kind = EngineKind.HEAD if index is None else EngineKind.LAYER
            self.run_engine(kind, index)
            events.advance(engine_name(kind, index))
