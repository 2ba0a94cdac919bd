"""Options, goals and inputs of a fit, checked before any engine is loaded."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from ...engines.bundle import EngineBundle
from ...engines.checking import Option, Problems, ValidatedConfig, field_problems
from ...engines.constants import integer
from ...engines.errors import SkipDecError, UsageError
from ...runtime.measuring.meter import SECONDS
from ...runtime.schedule import ExitSchedule
from ...runtime.schedule.bundle import bundle_schedule
from ...runtime.schedule.text import format_schedule
from ...runtime.tokens.tokenizer import Tokenizer
from ..data.data import DataConfig, Example, load_examples
from ..data.tokenised import ExampleEncoder, TokenisedData, TokenisedExample, tokenise
from .search import ScoredSchedule, SearchConfig
from .space import SearchSpace, SpaceConfig

SpeedupOf = Literal["call", "steps", "mixed"]
SPEEDUP: SpeedupOf = "call"  # the default meaning of a speed-up
SPEEDUP_NAMES: Mapping[SpeedupOf, str] = {
    "call": "the whole call",
    "steps": "the steps after the prompt",
    "mixed": "the steps of {rows} rows in flight",
}
_SLOTS = 8


@dataclass(frozen=True)
class TargetSpeedup:
    """At least this speed-up, with the lowest possible loss.

    The speed-up is of whole calls, prompts included, unless the fit's ``speedup_of`` differs.
    """

    value: float

    def __post_init__(self) -> None:
        if not 1 < self.value < math.inf:
            raise UsageError("--target-speedup", f"is {self.value}; allowed: above 1, e.g. 1.5")

    def ranked(
        self, candidates: Sequence[ScoredSchedule], full_loss: float, *, is_exhaustive: bool
    ) -> list[ScoredSchedule]:
        """Return the candidates that are expected to be fast enough, the lowest loss first.

        Raises SkipDecError with the nearest miss if there are none. Unless ``is_exhaustive``, a
        larger search may find further schedules.
        """
        fitting = [entry for entry in candidates if entry.speedup >= self.value]
        if not fitting:
            nearest = max(candidates, key=lambda entry: entry.speedup)
            came = f"is expected to reach {nearest.speedup:.3f}×"
            raise self.missed(nearest, came, is_exhaustive=is_exhaustive)
        return sorted(fitting, key=lambda entry: entry.mean_loss)

    def missed(self, nearest: ScoredSchedule, came: str, *, is_exhaustive: bool) -> SkipDecError:
        """Return the error for an unreached speed-up; ``came`` describes the nearest candidate."""
        return SkipDecError(
            f"--target-speedup {self.value:g}",
            f"can't be met: the nearest, {format_schedule(nearest.schedule)}, {came}, at a loss of "
            f"{nearest.mean_loss:.4f} per token; ask for less, or allow more --decay and "
            f"--placement{_more_budget(is_exhaustive)}",
        )


@dataclass(frozen=True)
class MaxLoss:
    """At most this many nats per token, or this many above full depth, at the highest speed."""

    value: float
    is_relative: bool

    def __post_init__(self) -> None:
        if not 0 <= self.value < math.inf:
            raise UsageError("--max-loss", f"is {self.value}; allowed: a finite number, 0 or more")

    @classmethod
    def parse(cls, text: str) -> MaxLoss:
        """Parse ``1.9``, nats per token, or ``+0.05``, above the loss at full depth."""
        try:
            value = float(text)
        except ValueError:
            raise UsageError(
                "--max-loss", f"is {text!r}; allowed: nats per token, e.g. 1.9, or +0.05 over full"
            ) from None
        return cls(value, text.strip().startswith("+"))

    def ranked(
        self, candidates: Sequence[ScoredSchedule], full_loss: float, *, is_exhaustive: bool
    ) -> list[ScoredSchedule]:
        """Return candidates within the bound, fastest first; if none, raise like TargetSpeedup."""
        bound = self.value + full_loss * self.is_relative
        fitting = [entry for entry in candidates if entry.mean_loss <= bound]
        if not fitting:
            nearest = min(candidates, key=lambda entry: entry.mean_loss)
            raise SkipDecError(
                f"--max-loss {'+' * self.is_relative}{self.value:g}",
                f"can't be met: the lowest loss, {nearest.mean_loss:.4f} nats per token, has "
                f"{format_schedule(nearest.schedule)}; full depth has {full_loss:.4f}; "
                f"ask for a larger one{_more_budget(is_exhaustive)}",
            )
        return sorted(fitting, key=lambda entry: (-entry.speedup, entry.mean_loss))


def _more_budget(is_exhaustive: bool) -> str:
    return "" if is_exhaustive else ", or search more schedules with a larger --budget"


Goal = TargetSpeedup | MaxLoss


class FitConfig(ValidatedConfig):
    """Options of a fit: bundle, data, goal, search space and effort.

    The goal is either ``target_speedup``, 1.5 for example, or ``max_loss``, "1.9" nats per token or
    "+0.05" above full depth.
    """

    bundle: Annotated[Path, Option(metavar="BUNDLE", is_argument=True)] = Field(
        description="a bundle's directory"
    )
    target_speedup: Annotated[float | None, Option()] = Field(
        default=None, description="lowest loss at this speed-up of calls or more"
    )
    max_loss: Annotated[str | None, Option()] = Field(
        default=None, description="fastest up to e.g. 1.9 nats per token; +0.05: over full"
    )
    speedup_of: Annotated[SpeedupOf, Option()] = Field(
        default=SPEEDUP,
        description="whole call, only its steps after the prompt, or mixed: steps of rows "
        "in flight, as in a server",
    )
    slots: Annotated[int | None, Option()] = Field(
        default=None,
        ge=1,
        le=integer("max_rows"),
        description="rows in flight for --speedup-of mixed (8)",
    )
    data: Annotated[DataConfig, Option()]
    space: Annotated[SpaceConfig, Option()] = SpaceConfig()
    horizon: Annotated[int | None, Option()] = Field(
        default=None, ge=1, description="(the data's median completion)"
    )
    num_examples: Annotated[int, Option("--examples")] = Field(
        default=96, ge=1, description="examples drawn from the data"
    )
    search: Annotated[SearchConfig, Option()] = SearchConfig()
    seconds: Annotated[float, Option()] = Field(
        default=SECONDS,
        ge=0,
        description="longest time per timing; 0: trust bytes, as mixed always does",
    )

    def _problems(self) -> Iterator[str]:
        if (self.target_speedup is None) == (self.max_loss is None):
            given = "neither was" if self.max_loss is None else "both were"
            yield f"{given} given; give `target_speedup` or `max_loss`"
        else:
            name = "max_loss" if self.target_speedup is None else "target_speedup"
            yield from field_problems(name, lambda: self.goal)
        if self.speedup_of == "call" and self.seconds == 0:
            yield (
                "`seconds` is 0, but the prompt's part of a call must be timed; set it to more, "
                "e.g. 20, or `speedup_of` to steps, which bytes estimate untimed"
            )
        if self.slots is not None and self.speedup_of != "mixed":
            yield (
                f"`slots` is {self.slots}, but `speedup_of` is {self.speedup_of}, of one row; "
                "leave it out, or set `speedup_of` to mixed"
            )

    @property
    def goal(self) -> Goal:
        """The goal that was given."""
        if self.target_speedup is not None:
            return TargetSpeedup(self.target_speedup)
        return MaxLoss.parse(self.max_loss or "")

    @property
    def is_timed(self) -> bool:
        """False if speed is only predicted from bytes, as for ``mixed``."""
        return self.seconds > 0 and self.speedup_of != "mixed"

    @property
    def rows(self) -> int:
        """Number of rows in flight to which the speed-up applies."""
        return (self.slots or _SLOTS) if self.speedup_of == "mixed" else 1

    @property
    def prompt_advice(self) -> str:
        """Advice on untried options for faster calls, as the end of a sentence."""
        is_tried = self.speedup_of != "call" or "decay" in self.space.prompts
        return "" if is_tried else ", or --prompt decay for a model that was tuned with it"

    @property
    def speedup_name(self) -> str:
        """Description of what the speed-up measures."""
        return SPEEDUP_NAMES[self.speedup_of].format(rows=self.rows)


@dataclass(frozen=True)
class FitInputs:
    """Inputs of a fit, fully checked."""

    own_schedule: ExitSchedule  # the bundle's
    data: TokenisedData  # the complete data
    examples: tuple[TokenisedExample, ...]  # examples to score
    space: SearchSpace
    horizon: int
    prompt: tuple[int, ...]  # of median length, for timing; leaves room for num_tokens
    num_tokens: int  # generated when timing and in predictions, at least 2

    @property
    def longest_completion(self) -> int:
        """Tokens in the data's longest completion."""
        return max(len(example.completion_token_ids) for example in self.data.examples)


def prepare(config: FitConfig) -> FitInputs:
    """Read data and bundle, tokenise, draw examples; load no engine.

    Raises one SkipDecError with every problem found: the line of each bad row, problems of the
    bundle, choices that give no schedule of its depth, and a target beyond all schedules.
    """
    problems = Problems("fit")
    rows = problems.attempt(load_examples, config.data)
    bundle = problems.attempt(EngineBundle.open, config.bundle)
    if bundle is None:
        raise problems.error()
    model, data = bundle.manifest.model, None
    if rows is not None:
        data = problems.attempt(_tokenise, config.data, bundle, rows)
    # If the data are invalid, use the maximum, which rejects the fewest schedules.
    horizon = config.horizon or (model.max_seq_len if data is None else data.median_completion)
    layers = model.num_layers
    space = problems.attempt(SearchSpace, config.space, num_layers=layers, horizon=horizon)
    if space is not None:
        problems.attempt(_check_target, config.goal, space)
    if data is None or space is None or problems.errors:
        raise problems.error()
    # Timing generates at least two tokens, for which a maximal prompt leaves no room.
    prompts = sorted((example.prompt_token_ids for example in data.examples), key=len)
    prompt = prompts[(len(prompts) - 1) // 2][: model.max_seq_len - 2]
    room = model.max_seq_len - len(prompt)
    count = min(config.num_examples, len(data.examples))
    return FitInputs(
        own_schedule=bundle_schedule(bundle),
        data=data,
        examples=tuple(random.Random(config.search.seed).sample(data.examples, count)),
        space=space,
        horizon=horizon,
        prompt=prompt,
        num_tokens=max(2, min(data.median_completion, room)),
    )


def _check_target(goal: Goal, space: SearchSpace) -> None:
    """Refuse a target beyond every schedule, even if embedding and head took no time."""
    fastest = space.fastest()[0]
    most = fastest.num_layers / fastest.min_exit_layer
    if isinstance(goal, TargetSpeedup) and goal.value > most:
        raise SkipDecError(
            f"--target-speedup {goal.value:g}",
            f"can't be met: the fastest candidate, {format_schedule(fastest)}, runs "
            f"{fastest.min_exit_layer} of {fastest.num_layers} layers, so it gains {most:g}× at "
            "most; ask for less, or allow more --placement",
        )


def _tokenise(data: DataConfig, bundle: EngineBundle, rows: Sequence[Example]) -> TokenisedData:
    model, tokenizer = bundle.manifest.model, Tokenizer.of(bundle)
    problems = []
    if tokenizer is None:
        problems.append("has no tokenizer; export it from a checkpoint with tokenizer.json")
    if model.eos_token_id is None:
        problems.append("has no end-of-text token, so no completion has an end; export it with one")
    if tokenizer is None or problems:
        raise UsageError(str(bundle.path), *problems)
    with closing(tokenizer):
        template = bundle.manifest.prompt_template
        return tokenise(rows, ExampleEncoder.of(model, tokenizer, data, template))
