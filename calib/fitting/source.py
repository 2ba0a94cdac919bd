"""Sources of a fit: a bundle, or a model that is exported temporarily."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from ...engines.bundle import EngineBundle, write_schedule
from ...engines.bundle.place import bundle_place
from ...engines.errors import CheckpointError
from ...engines.host.events import Events
from ...engines.host.installation import require_extra
from ...engines.manifest import ModelSpec
from ...exporter.checkpoint.chat import parse_tokenizer
from ...exporter.config import ExportConfig
from ...runtime.schedule import ExitSchedule
from ...runtime.schedule.bundle import bundle_schedule, schedule_file
from ...runtime.tokens.tokenizer import Tokenizer

_PREFIX = ".skipdec-fit-"


@dataclass(frozen=True)
class SourceFacts:
    """Facts known before any engine is built or loaded."""

    model: ModelSpec
    tokenizer: Tokenizer | None
    schedule: ExitSchedule  # its own schedule
    prompt_template: str | None = None  # used for its tuning


@dataclass(frozen=True)
class BundleSource:
    """A bundle, which is not changed."""

    path: Path

    @property
    def name(self) -> str:
        """Path of the bundle."""
        return str(self.path)

    def examine(self) -> SourceFacts:
        """Open the bundle without loading an engine. Raises BundleError."""
        bundle = EngineBundle.open(self.path)
        return SourceFacts(
            model=bundle.manifest.model,
            tokenizer=Tokenizer.of(bundle),
            schedule=bundle_schedule(bundle),
            prompt_template=bundle.manifest.prompt_template,
        )

    def bundle(self, events: Events) -> AbstractContextManager[Path]:
        """Return the bundle's path, for use as a context."""
        return nullcontext(self.path)

    def publish(self, bundle: Path, schedule: ExitSchedule) -> Path | None:
        """Do nothing, as ``skipdec schedule set`` changes a bundle's schedule."""
        return None


@dataclass(frozen=True)
class ModelSource:
    """A checkpoint or hub id: exported into ``directory``, fitted, and deleted again.

    If ``config.output`` is set, the bundle is kept there with the chosen schedule; it must be on
    the file system of ``directory``. Only a bundle that is kept is verified by the export.
    """

    config: ExportConfig
    directory: Path

    @property
    def name(self) -> str:
        """Name of the model as it was given."""
        return self.config.model

    def examine(self) -> SourceFacts:
        """Open the checkpoint and make the checks of an export, including free disk space.

        Raises MissingExtraError without torch and onnx, else one error with every problem.
        """
        require_extra("export", "skipdec fit of a model")
        from ...exporter.pipeline.exporting import plan_export

        kept = self.config.output
        try:
            plan = plan_export(self._exporting_to(kept or self.directory / f"{_PREFIX}bundle"))
            plan.check_space()
        except CheckpointError as error:
            if Path(self.name).expanduser().exists():
                raise
            problems = (f"is not a bundle here; as a model, it {text}" for text in error.problems)
            raise CheckpointError(error.subject, *problems) from error
        tokenizer = None
        if plan.tokenizer is not None:
            tokenizer = parse_tokenizer(plan.tokenizer, plan.chat, plan.model.name)
        return SourceFacts(
            model=plan.model,
            tokenizer=tokenizer,
            schedule=plan.schedule,
            prompt_template=plan.prompt_template,
        )

    @contextmanager
    def bundle(self, events: Events) -> Iterator[Path]:
        """Export inside the block; the directory is then deleted, even on errors and Ctrl-C."""
        from ...exporter.pipeline.exporting import export

        with tempfile.TemporaryDirectory(prefix=_PREFIX, dir=self.directory) as directory:
            events.note(f"exporting {self.name} temporarily, into {directory}")
            path = Path(directory) / "bundle"
            report = export(self._exporting_to(path), events)
            events.note(f"exported: {report.size / 1e6:,.1f} MB in {report.seconds:.0f} s")
            yield path

    def publish(self, bundle: Path, schedule: ExitSchedule) -> Path | None:
        """Give the bundle its schedule and move it atomically to ``config.output``.

        Raises UsageError and BundleError if that place was taken in the meantime.
        """
        if self.config.output is None:
            return None
        place = bundle_place(self.config.output)
        write_schedule(bundle, schedule_file(schedule))
        with place.locked(force=self.config.force):
            place.take(bundle)
        return place.target

    def _exporting_to(self, output: Path) -> ExportConfig:
        changes = {"output": output, "verify": self.config.output is not None}
        return self.config.model_copy(update=changes)


Source = BundleSource | ModelSource
"""A bundle, or a model that can be exported. ``publish`` needs ``bundle`` open, but no engine."""
