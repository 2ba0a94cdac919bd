"""Open and check everything that a calibration needs; generate completions to observe."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ...engines.backends.session import open_backend
from ...engines.bundle import EngineBundle
from ...engines.checking import Problems
from ...engines.errors import UsageError
from ...exporter.checkpoint.checkpoint import Checkpoint
from ...runtime.generator import Generator
from ...runtime.schedule import ExitSchedule
from ...runtime.tokens.outputs import StreamDelta
from ...runtime.tokens.sampling import SamplingParams
from ..data.rows import raise_problems
from ..data.tokenised import TokenisedExample
from ..layerwise.plan import LayerwisePlan, open_texts, split_rows
from .config import CalibrationConfig

_FREE_FIELDS = {"name", "max_seq_len"}  # a bundle may be renamed or hold fewer positions


@dataclass(frozen=True)
class CalibrationPlan(LayerwisePlan):
    """A checked calibration; ``writer``, if set, has yet to complete the ``observed`` texts."""

    config: CalibrationConfig
    writer: EngineBundle | None = None

    @property
    def summary(self) -> str:
        """One-line summary of the work."""
        source = "" if self.writer is None else f" (completions by {self.writer.path.name})"
        return (
            f"{self.model.name}: {len(self.observed)} texts for the ranges{source}, "
            f"{len(self.held_out)} for the losses, schedule {self.schedule_text}"
        )


def plan_calibration(config: CalibrationConfig) -> CalibrationPlan:
    """Read the data, open the checkpoint and parse the schedule; no weights are read.

    Raises one SkipDecError with every problem found: an output that exists, anything ``open_texts``
    finds, a bundle of another model, prompts that leave no room for the completions to generate.
    """
    problems = Problems("calibrate")
    problems.attempt(_check_output, config)
    opened = open_texts(config, problems)
    writer = None
    if config.generate_with is not None:
        writer = problems.attempt(open_writer, config.generate_with, opened.checkpoint)
    if writer is not None and opened.data is not None and config.completion_tokens is not None:
        observed, _ = split_rows(opened.data.examples, config)
        problems.attempt(check_room, observed, config.completion_tokens, writer)
    return replace(opened.plan(CalibrationPlan), writer=writer)


def _check_output(config: CalibrationConfig) -> None:
    output = config.output
    problems = []
    if output.is_dir():
        problems.append("is a directory; name a file, e.g. ranges.json")
    elif output.exists() and not config.force:
        problems.append("exists; pass --force to replace it, or choose another name")
    if not output.absolute().parent.is_dir():
        problems.append(f"can't be written: {output.absolute().parent} is not a directory; make it")
    if problems:
        raise UsageError(str(output), *problems)


def open_writer(path: Path, checkpoint: Checkpoint) -> EngineBundle:
    """Open the bundle that writes the completions; no engine is loaded.

    Raises BundleError, and UsageError with every difference, if the bundle was not exported from
    ``checkpoint``: another structure, tokenizer or weights, which are hashed for it. Any precision
    and target will do.
    """
    bundle = EngineBundle.open(path.expanduser(), verify="full")
    built = bundle.manifest.model.model_dump(exclude=_FREE_FIELDS)
    wanted = checkpoint.model.model_dump(exclude=_FREE_FIELDS)
    problems = [
        f"{field} is {built[field]!r} in the bundle, {wanted[field]!r} in the checkpoint"
        for field in wanted
        if built[field] != wanted[field]
    ]
    tokenizer = bundle.manifest.tokenizer
    stored = None if tokenizer is None else bundle.read(tokenizer)
    if stored != checkpoint.tokenizer_json:
        problems.append("its tokenizer is not the checkpoint's")
    if not problems and bundle.manifest.source.get("content") != checkpoint.source()["content"]:
        problems.append("its weights are not the checkpoint's")
    if problems:
        problems[-1] += "; give a bundle that was exported from this checkpoint"
        raise UsageError(f"--generate-with {path}", *problems)
    return bundle


def check_room(examples: Sequence[TokenisedExample], num_tokens: int, bundle: EngineBundle) -> None:
    """Raise UsageError, naming rows, unless ``num_tokens`` more tokens fit after every prompt."""
    positions = bundle.manifest.model.max_seq_len
    raise_problems(
        "--generate-tokens",
        [
            f"{example.source}: the prompt has {length} tokens and {num_tokens} more would be "
            f"generated; the bundle holds {positions} positions; lower --generate-tokens, or "
            "shorten the row"
            for example in examples
            if (length := len(example.prompt_token_ids)) + num_tokens > positions
        ],
    )


def generate_completions(
    bundle: EngineBundle,
    examples: Sequence[TokenisedExample],
    schedule: ExitSchedule,
    num_tokens: int,
    text_generated: Callable[[], None],
) -> tuple[TokenisedExample, ...]:
    """Return ``examples`` with completions generated greedily by ``bundle`` at ``schedule``.

    Each completion ends at the end-of-text token or after ``num_tokens``. The bundle's engines stay
    in memory until all are written; ``text_generated`` is called after each.
    """

    def count(deltas: Sequence[StreamDelta]) -> None:
        for delta in deltas:
            if delta.finish_reason is not None:
                text_generated()

    prompts = [example.prompt_token_ids for example in examples]
    params = SamplingParams.fixed(temperature=0.0, max_tokens=num_tokens)
    with Generator(bundle, open_backend(bundle.manifest.target)) as generator:
        results = generator.generate(prompts, params, schedule=schedule, on_progress=count)
    return tuple(
        replace(example, completion_token_ids=result.outputs[0].token_ids)
        for example, result in zip(examples, results, strict=True)
    )
