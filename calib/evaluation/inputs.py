"""What an evaluation is asked to do, checked and tokenised before any engine is loaded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from math import ceil
from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, Field

from ...engines.bundle import EngineBundle
from ...engines.checking import Option, Problems, ValidatedConfig
from ...engines.errors import ScheduleError, UsageError
from ...runtime.schedule import ExitSchedule
from ...runtime.schedule.text import default_horizon, format_schedule, parse_schedule
from ..data.data import DataConfig
from ..data.rows import raise_problems
from ..data.templates import PromptTemplate
from .metrics import MetricOptions
from .prompts import EncodedPrompt, ReferencedPrompt, encode_prompts, read_prompts

_ROOM_OVER_REFERENCES = 1.5  # of the default max_tokens: an untuned model writes longer texts


@dataclass(frozen=True)
class BundleChoice:
    """A bundle and the name of its rows; bundles of one name (seeds) are averaged too."""

    label: str
    path: Path

    @classmethod
    def parse_all(cls, texts: Sequence[str]) -> tuple[BundleChoice, ...]:
        """Read ``NAME=PATH`` or ``PATH``, whose name is the directory's.

        Raises UsageError where two plain paths have one name: they would be averaged unasked.
        """
        choices, plain = [], []
        for text in texts:
            name, equals, path = text.partition("=")
            if equals and name and path and not Path(text).exists():
                choices.append(cls(name, Path(path)))
            else:
                choices.append(cls(Path(text).resolve().name, Path(text)))
                plain.append(choices[-1].label)
        problems = [
            f"{name!r} names {plain.count(name)} bundles; write NAME=PATH: other names to tell "
            "them apart, one name to average them"
            for name in dict.fromkeys(plain)
            if plain.count(name) > 1
        ]
        if problems:
            raise UsageError("bundles", *problems)
        return tuple(choices)


def _choices(value: object) -> object:
    """Bundles as texts are parsed; anything else is left to the field."""
    if isinstance(value, list | tuple) and all(isinstance(text, str) for text in value):
        return BundleChoice.parse_all(value)
    return value


_RUNNING, _METRICS = Option(panel="Running"), Option(panel="Metrics")


class EvaluationConfig(ValidatedConfig):
    """What to evaluate. ``schedules`` are texts; full depth is always run, as the reference.

    Without ``schedules`` each bundle runs its own. ``bundles`` may be texts: `BundleChoice`.
    """

    bundles: Annotated[
        tuple[BundleChoice, ...],
        BeforeValidator(_choices),
        Option(metavar="[NAME=]BUNDLE…", is_argument=True),
    ] = Field(min_length=1, description="one name: averaged too")
    data: Annotated[DataConfig, Option(panel="Data")]
    limit: Annotated[int | None, Option(panel="Data")] = Field(
        default=None, ge=1, description="first N distinct prompts (all)"
    )
    score_only: Annotated[bool, _RUNNING] = Field(
        default=False, description="write no texts: perplexity alone, quick"
    )
    by_position: Annotated[bool, _METRICS] = Field(
        default=False, description="perplexity and loss over full by token position"
    )
    equal_lengths: Annotated[bool, _RUNNING] = Field(
        default=False, description="speed-ups over full depth writing as many tokens"
    )
    schedules: Annotated[tuple[str, ...], Option("--schedule", panel="Running")] = Field(
        default=(), description="repeat for several; full always runs (the bundle's own)"
    )
    batch_size: Annotated[int, _RUNNING] = Field(default=16, ge=1, description="prompts at once")
    max_tokens: Annotated[int | None, _RUNNING] = Field(
        default=None, ge=1, description="(half more than the longest reference)"
    )
    temperature: Annotated[float, _RUNNING] = Field(default=0.0, ge=0, description="0: greedy")
    seed: Annotated[int, _RUNNING] = Field(default=0, ge=0, description="of sampling and intervals")
    metrics: Annotated[MetricOptions, _METRICS] = MetricOptions()
    resamples: Annotated[int, _METRICS] = Field(default=1000, ge=1, description="of the bootstrap")
    confidence: float = Field(default=0.95, gt=0, lt=1)
    num_shown: Annotated[int, Option("--examples", panel="Metrics")] = Field(
        default=5, ge=0, description="side by side in DIR"
    )

    def _problems(self) -> Iterator[str]:
        if self.score_only:
            unused = {
                "equal_lengths": self.equal_lengths,
                "max_tokens": self.max_tokens,
                "temperature": self.temperature,
                "metrics.lowercase": self.metrics.lowercase,
                "metrics.bert_model": self.metrics.bert_model,
            }
            for name, value in unused.items():
                if value:
                    yield f"`{name}` is {value}, and `score_only` writes no texts; leave it out"


@dataclass(frozen=True)
class PreparedBundle:
    """One bundle's share of the work: everything that can be refused has been."""

    choice: BundleChoice
    bundle: EngineBundle
    schedules: Mapping[ExitSchedule, str]  # full depth first, each with the name asked for
    prompts: tuple[EncodedPrompt, ...]
    max_tokens: int
    template: PromptTemplate

    @property
    def num_cut(self) -> int:
        """Prompts that lost words so as to fit this bundle."""
        return sum(prompt.is_cut for prompt in self.prompts)

    def room(self, prompt: EncodedPrompt) -> int:
        """``max_tokens``, or what ``prompt`` leaves of the bundle's positions."""
        left = self.bundle.manifest.model.max_seq_len - len(prompt.token_ids)
        return min(self.max_tokens, left)


@dataclass(frozen=True)
class EvaluationInputs:
    """All prompts, and each bundle with its own tokens of them."""

    prompts: tuple[ReferencedPrompt, ...]
    bundles: tuple[PreparedBundle, ...]
    num_dropped: int = 0  # prompts that do not fit one of the bundles

    @property
    def notes(self) -> list[str]:
        """What prompts are put into, for people, where it differs from what might be thought."""
        return [
            f"{prepared.choice.label}: {prepared.template.note}"
            for prepared in self.bundles
            if prepared.template.note is not None
        ]


def prepare(config: EvaluationConfig) -> EvaluationInputs:
    """Read the data, open the bundles, parse schedules, tokenise; load no engine.

    Raises one SkipDecError with every problem found: the line of each bad row; bundles that can't
    be opened or have no tokenizer; schedules that do not fit a bundle's depth; and, where the
    data's ``long_prompts`` is not "drop", prompts that leave no room for their reference, by line.
    """
    problems = Problems("evaluate")
    prompts = problems.attempt(read_prompts, config.data, config.limit) or ()
    opened = [
        (choice, bundle)
        for choice in config.bundles
        if (bundle := problems.attempt(EngineBundle.open, choice.path)) is not None
    ]
    encodings = [
        problems.attempt(encode_prompts, bundle, prompts, config.data) for _, bundle in opened
    ]
    kept: Sequence[bool] = [True] * len(prompts)
    if config.data.long_prompts == "drop":
        kept = [
            all(not encoded or encoded[place].fits for encoded in encodings)
            for place in range(len(prompts))
        ]
        if prompts and not any(kept):
            none_fits = f"has no prompts that fit; all {len(prompts)} are too long"
            problems.errors.append(UsageError("data", none_fits))
    prompts = tuple(compress(prompts, kept))
    prepared = []
    for (choice, bundle), encoded in zip(opened, encodings, strict=True):
        own = tuple(compress(encoded or (), kept))
        ready = problems.attempt(_prepare_bundle, config, choice, bundle, prompts, own)
        if ready is not None:
            prepared.append(ready)
    if problems.errors:
        raise problems.error()
    return EvaluationInputs(prompts, tuple(prepared), num_dropped=kept.count(False))


def _prepare_bundle(
    config: EvaluationConfig,
    choice: BundleChoice,
    bundle: EngineBundle,
    prompts: Sequence[ReferencedPrompt],
    encoded: tuple[EncodedPrompt, ...],
) -> PreparedBundle:
    """The bundle's share of the work. ``encoded`` is empty where rows or tokenizer can't be read.

    Raises UsageError.
    """
    max_tokens = config.max_tokens or bundle.manifest.model.max_seq_len
    if encoded and config.max_tokens is None:
        longest = max(tokens.reference_tokens for tokens in encoded)
        max_tokens = ceil(_ROOM_OVER_REFERENCES * (longest + 1))
    schedules, problems = _schedules(config.schedules, bundle, max_tokens)
    if bundle.manifest.tokenizer is None:
        problems.append(
            "has no tokenizer, and metrics need texts; export it from a checkpoint with "
            "tokenizer.json"
        )
    problems += [
        f"{prompt.source}: prompt and first reference have {tokens.num_tokens} tokens; the bundle "
        f"holds {tokens.max_length} positions; shorten or remove the row, or see --long-prompts"
        for prompt, tokens in zip(prompts, encoded, strict=False)
        if not tokens.fits
    ]
    raise_problems(str(choice.path), problems)
    template = PromptTemplate.choose(config.data, bundle.manifest.prompt_template)
    return PreparedBundle(choice, bundle, schedules, encoded, max_tokens, template)


def _schedules(
    texts: Sequence[str], bundle: EngineBundle, max_tokens: int
) -> tuple[dict[ExitSchedule, str], list[str]]:
    """Full depth, then those asked for, each once; and why others are refused."""
    num_layers = bundle.manifest.model.num_layers
    own = ExitSchedule.from_document(bundle.schedule_document)
    schedules = {ExitSchedule.full(num_layers): "full"}
    if not texts:
        schedules.setdefault(own, format_schedule(own))
    problems = []
    for text in texts:
        horizon = default_horizon(own, max_tokens)
        try:
            schedule = parse_schedule(text, num_layers=num_layers, horizon=horizon)
        except ScheduleError as error:
            problems += [f"{error.subject} {problem}" for problem in error.problems]
        else:
            schedules.setdefault(schedule, text)
    return schedules, problems
