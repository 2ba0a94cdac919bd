"""Options of an evaluation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, Field, field_validator

from ...engines.checking import Option, ValidatedConfig, expanded, name_of
from ...engines.constants import integer
from ...engines.errors import UsageError
from ...runtime.drafting.config import canonical_drafts
from ...runtime.measuring.meter import SECONDS
from ..data.data import DataConfig


@dataclass(frozen=True)
class BundleChoice:
    """A bundle and the label of its rows; bundles with the same label (seeds) are also averaged."""

    label: str
    path: Path

    @classmethod
    def parse_all(cls, texts: Sequence[str]) -> tuple[BundleChoice, ...]:
        """Parse ``NAME=PATH`` or ``PATH``, which is labelled with the directory's name.

        Raises UsageError if two plain paths have the same name, which would average them by
        accident.
        """
        choices, plain = [], []
        for text in texts:
            name, equals, path = text.partition("=")
            if equals and name and path and not Path(text).exists():
                choices.append(cls(name, expanded(path)))
            else:
                choices.append(cls(name_of(text), expanded(text)))
                plain.append(choices[-1].label)
        problems = [
            f"{name!r} names {plain.count(name)} bundles; write NAME=PATH: different names to "
            "tell them apart, the same name to average them"
            for name in dict.fromkeys(plain)
            if plain.count(name) > 1
        ]
        if problems:
            raise UsageError("bundles", *problems)
        return tuple(choices)


def _choices(value: object) -> object:
    """Parse bundles given as texts; leave anything else to the field."""
    if isinstance(value, list | tuple) and all(isinstance(text, str) for text in value):
        return BundleChoice.parse_all(value)
    return value


class MetricOptions(ValidatedConfig):
    """Options of the metrics of generated texts."""

    lowercase: Annotated[bool, Option()] = Field(
        default=False,
        description="BLEU ignores case",  # ROUGE-L always does
    )
    bert_model: Annotated[Path | None, Option()] = Field(
        default=None, description="directory of an encoder, for BERT-F"
    )


class EvaluationConfig(ValidatedConfig):
    """Options of ``evaluate``. ``schedules`` are texts; full depth always runs as the reference.

    Without ``schedules`` each bundle runs its own. ``bundles`` may be texts, see `BundleChoice`.
    """

    bundles: Annotated[
        tuple[BundleChoice, ...],
        BeforeValidator(_choices),
        Option(metavar="[NAME=]BUNDLE", is_argument=True),
    ] = Field(min_length=1, description="those of one NAME are averaged, too")
    data: Annotated[DataConfig, Option()]
    limit: Annotated[int | None, Option()] = Field(
        default=None, ge=1, lt=2**63, description="first N distinct prompts (all)"
    )
    score_only: Annotated[bool, Option()] = Field(
        default=False, description="generate no texts: perplexity only, fast"
    )
    by_position: Annotated[bool, Option()] = Field(
        default=False, description="perplexity and added loss by token position"
    )
    equal_lengths: Annotated[bool, Option()] = Field(
        default=False, description="compare with full depth at the same output length"
    )
    schedules: Annotated[tuple[str, ...], Option("--schedule")] = Field(
        default=(), description="repeat for several; full always runs (the bundle's own)"
    )
    drafts: Annotated[tuple[str, ...], Option("--draft")] = Field(
        default=(), description="repeat for several, e.g. own: full depth again, with drafts"
    )
    batch_size: Annotated[int, Option()] = Field(
        default=16, ge=1, le=integer("max_rows"), description="prompts per batch"
    )
    max_tokens: Annotated[int | None, Option()] = Field(
        default=None, ge=1, description="(half more than the longest reference)"
    )
    temperature: float = Field(default=0.0, ge=0, le=1e6, description="0: greedy")
    seed: Annotated[int, Option()] = Field(
        default=0, ge=0, le=2**32 - 1, description="sampling and intervals"
    )
    seconds: Annotated[float, Option()] = Field(
        default=SECONDS,
        ge=0,
        description="time texts until intervals of speed-ups are narrow, or for this long",
    )
    metrics: Annotated[MetricOptions, Option()] = MetricOptions()
    resamples: int = Field(
        default=1000, ge=1, le=1_000_000, description="resamples of the bootstrap"
    )
    confidence: float = Field(default=0.95, gt=0, lt=1)
    num_shown: int = Field(default=5, ge=0, description="texts side by side in DIR")

    @field_validator("drafts")
    @classmethod
    def _check_drafts(cls, drafts: tuple[str, ...]) -> tuple[str, ...]:
        return canonical_drafts(drafts)

    def _problems(self) -> Iterator[str]:
        if self.score_only:
            unused = {
                "drafts": self.drafts,
                "equal_lengths": self.equal_lengths,
                "max_tokens": self.max_tokens,
                "temperature": self.temperature,
                "metrics.lowercase": self.metrics.lowercase,
                "metrics.bert_model": self.metrics.bert_model,
            }
            for name, value in unused.items():
                if value:
                    yield f"`{name}` has no effect: `score_only` generates no texts; leave it out"
