"""Open and check everything that a layer-by-layer run over real texts needs."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import accumulate
from typing import TypeVar

from ...engines.checking import Problems
from ...engines.errors import UsageError, counted
from ...engines.manifest import ModelSpec
from ...exporter.checkpoint.checkpoint import Checkpoint, open_checkpoint, resolve_schedule
from ...runtime.schedule import ExitSchedule
from ...runtime.schedule.text import format_schedule
from ..data.data import DataConfig, Example, load_examples
from ..data.tokenised import (
    ExampleEncoder,
    TokenisedData,
    TokenisedExample,
    tokenise,
)
from .config import LayerwiseConfig


@dataclass(frozen=True)
class LayerwisePlan:
    """The opened checkpoint, its schedule, and the texts. ``warnings`` are for the user."""

    config: LayerwiseConfig
    checkpoint: Checkpoint
    schedule: ExitSchedule
    observed: tuple[TokenisedExample, ...]
    held_out: tuple[TokenisedExample, ...]
    warnings: tuple[str, ...]

    @property
    def model(self) -> ModelSpec:
        """The structure of the model."""
        return self.checkpoint.model

    @property
    def schedule_text(self) -> str:
        """The schedule in its text form."""
        return format_schedule(self.schedule)


Plan = TypeVar("Plan", bound=LayerwisePlan)


def open_plan(
    kind: type[Plan],
    config: LayerwiseConfig,
    problems: Problems,
    check: Callable[[ModelSpec], None] = lambda model: None,
) -> Plan:
    """Read the data, open the checkpoint and parse the schedule; no weights are read.

    A schedule without a horizon gets the median completion length or, if the data are invalid, the
    model's maximum length, which rejects the fewest schedules. Both parts of the texts are cut to
    share ``max_tokens``. Raises one SkipDecError with the ``problems``, those of ``check``, bad
    lines of the data, too few lines, prompts longer than the model's maximum, and a schedule of
    another depth.
    """
    drawn = problems.attempt(draw_rows, config)
    checkpoint = problems.attempt(open_checkpoint, config.source)
    if checkpoint is None:
        raise problems.error()
    data = None
    if drawn is not None:
        data = problems.attempt(tokenise_rows, checkpoint, drawn, config.data)
    horizon = checkpoint.model.max_seq_len if data is None else data.median_completion
    schedule = problems.attempt(resolve_schedule, config.schedule, checkpoint, horizon)
    problems.attempt(check, checkpoint.model)
    if data is None or schedule is None or problems.errors:
        raise problems.error()
    observed, held_out = _split_rows(data.examples, config)
    room = config.max_tokens * config.observed_share
    kept = observed[: _count_within(map(len, observed), room)]
    kept_out = held_out[: _count_within(map(len, held_out), config.max_tokens - room)]
    warnings = [*checkpoint.warnings, *data.warnings]
    if dropped := len(data.examples) - len(kept) - len(kept_out):
        warnings.append(
            f"{dropped} of {len(data.examples)} texts are left out, over the limit of "
            f"{config.max_tokens} tokens; raise --max-tokens, which takes more memory"
        )
    return kind(config, checkpoint, schedule, tuple(kept), tuple(kept_out), tuple(warnings))


def _split_rows(
    examples: Sequence[TokenisedExample], config: LayerwiseConfig
) -> tuple[Sequence[TokenisedExample], Sequence[TokenisedExample]]:
    """Split the drawn rows into observed and held-out ones, neither empty.

    If overlong rows were dropped, both parts shrink in proportion: with 6 and 3 requested, the
    first 6 of 9 drawn rows are observed, or the first 4 if 6 remain.
    """
    first = min(max(1, round(len(examples) * config.observed_share)), len(examples) - 1)
    return examples[:first], examples[first:]


def draw_rows(config: LayerwiseConfig) -> list[Example]:
    """Draw the rows to observe, then those held out. Raises UsageError if there are too few."""
    examples = load_examples(config.data)
    wanted = config.num_examples + config.num_held_out
    if len(examples) < wanted:
        raise UsageError(
            f"data {config.data.path}",
            f"has {counted(len(examples), 'row')}; asked for {config.num_examples} to observe and "
            f"{config.num_held_out} others for the losses; lower --examples or --held-out",
        )
    return random.Random(config.seed).sample(examples, wanted)


def tokenise_rows(
    checkpoint: Checkpoint, examples: Sequence[Example], data: DataConfig
) -> TokenisedData:
    """Encode with the checkpoint's tokenizer. Raises like `Checkpoint.open_tokenizer`."""
    model = checkpoint.model
    with closing(checkpoint.open_tokenizer()) as tokenizer:
        encoder = ExampleEncoder.of(model, tokenizer, data, checkpoint.prompt_template)
        tokenised = tokenise(examples, encoder)
    if len(tokenised.examples) < 2:
        raise UsageError(
            f"data {data.path}",
            f"has {counted(len(examples), 'row')} drawn, {len(tokenised.examples)} of them within "
            f"{model.max_seq_len} tokens; at least 2 are needed, cut prompts or draw more rows",
        )
    return tokenised


def _count_within(lengths: Iterable[int], room: float) -> int:
    """Return how many of the first ``lengths`` fit into ``room`` together; at least 1."""
    return max(1, sum(total <= room for total in accumulate(lengths)))
