"""What is fitted: a bundle, or something that becomes one for the time of the fit."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ..engines.bundle import EngineBundle
from ..engines.manifest import ModelSpec
from ..runtime.schedule import ExitSchedule
from ..runtime.tokens.tokenizer import Tokenizer


@dataclass(frozen=True)
class SourceFacts:
    """What can be known before any engine is built or loaded."""

    model: ModelSpec
    tokenizer: Tokenizer | None
    schedule: ExitSchedule  # its own


class Announcer(Protocol):
    """Tells people what is going on."""

    def phase(self, name: str) -> None:
        """What is done from now on."""

    def note(self, text: str) -> None:
        """Something that stays readable afterwards."""


class Source(Protocol):
    """A bundle, or a model that can be exported."""

    @property
    def name(self) -> str:
        """As it was given."""

    def examine(self) -> SourceFacts:
        """Check everything that can be checked and change nothing. Raises SkipDecError."""

    def bundle(self, announcer: Announcer) -> AbstractContextManager[Path]:
        """The directory of a bundle, there inside the ``with`` block."""

    def publish(self, bundle: Path, schedule: ExitSchedule) -> Path | None:
        """Inside that block, with no engine open: leave ``bundle`` behind if that was asked for."""


@dataclass(frozen=True)
class BundleSource:
    """A bundle, which stays as it is."""

    path: Path

    @property
    def name(self) -> str:
        """Its path."""
        return str(self.path)

    def examine(self) -> SourceFacts:
        """Open it without loading an engine. Raises BundleError."""
        bundle = EngineBundle.open(self.path)
        name = bundle.manifest.tokenizer
        return SourceFacts(
            model=bundle.manifest.model,
            tokenizer=None if name is None else Tokenizer.load(bundle.file(name)),
            schedule=ExitSchedule.from_document(bundle.schedule_document),
        )

    def bundle(self, announcer: Announcer) -> AbstractContextManager[Path]:
        """Its path."""
        return nullcontext(self.path)

    def publish(self, bundle: Path, schedule: ExitSchedule) -> Path | None:
        """Nothing: ``skipdec schedule set`` changes a bundle's schedule."""
        return None
