"""What a fit needs, read and checked before any engine is loaded."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..engines.bundle import EngineBundle
from ..engines.errors import UsageError
from ..runtime.tokenizer import Tokenizer
from .data import DataConfig, load_examples
from .fit_goal import Goal
from .fit_space import SearchSpace, SpaceConfig
from .schedule_search import SearchConfig
from .tokenised import TokenisedData, TokenisedExample, tokenise


@dataclass(frozen=True, kw_only=True)
class FitConfig:
    """What to fit, on what, and how much work to put in."""

    bundle: Path
    data: DataConfig
    goal: Goal
    space: SpaceConfig = field(default_factory=SpaceConfig)
    search: SearchConfig = field(default_factory=SearchConfig)
    num_examples: int = 96  # drawn from the data by the search's seed
    horizon: int | None = None  # None: the data's median completion
    repetitions: int = 7  # of each timed comparison with full depth; 0: bytes alone decide
    sensitivity: bool = False

    def __post_init__(self) -> None:
        bounds = (("num_examples", 1), ("horizon", 1), ("repetitions", 0))
        problems = [
            f"{name} is {value}; allowed: {low} or more"
            for name, low in bounds
            if (value := getattr(self, name)) is not None and value < low
        ]
        if problems:
            raise UsageError("fit", *problems)


@dataclass(frozen=True)
class FitInputs:
    """Everything that can be refused has been."""

    bundle: EngineBundle
    data: TokenisedData  # all of it
    examples: tuple[TokenisedExample, ...]  # those that are scored
    space: SearchSpace
    horizon: int
    prompt: tuple[int, ...]  # of median length, for timing
    num_tokens: int  # generated in timing and in predictions, 2 or more

    @property
    def longest_completion(self) -> int:
        """Tokens of the data's longest completion."""
        return max(len(example.completion_token_ids) for example in self.data.examples)


def prepare(config: FitConfig) -> FitInputs:
    """Read data and bundle, tokenise, draw the examples; load no engine.

    Raises UsageError with the line of every bad row, BundleError, and ScheduleError for choices
    that fit no schedule of the bundle's depth.
    """
    rows = load_examples(config.data)
    bundle = EngineBundle.open(config.bundle)
    model, name = bundle.manifest.model, bundle.manifest.tokenizer
    problems = []
    if name is None:
        problems.append("has no tokenizer; export it from a checkpoint with tokenizer.json")
    if model.eos_token_id is None:
        problems.append("has no end-of-text token, so no completion has an end; export it with one")
    if name is None or model.eos_token_id is None:
        raise UsageError(str(config.bundle), *problems)
    data = tokenise(
        rows,
        Tokenizer.load(bundle.file(name)),
        eos_token_id=model.eos_token_id,
        max_length=model.max_seq_len,
    )
    horizon = config.horizon or data.median_completion
    prompt = _median_prompt(data.examples)
    room = model.max_seq_len - len(prompt)
    return FitInputs(
        bundle=bundle,
        data=data,
        examples=_draw(data.examples, config.num_examples, config.search.seed),
        space=SearchSpace(config.space, num_layers=model.num_layers, horizon=horizon),
        horizon=horizon,
        prompt=prompt,
        num_tokens=max(2, min(data.median_completion, room)),
    )


def _draw(
    examples: Sequence[TokenisedExample], count: int, seed: int
) -> tuple[TokenisedExample, ...]:
    return tuple(random.Random(seed).sample(examples, min(count, len(examples))))


def _median_prompt(examples: Sequence[TokenisedExample]) -> tuple[int, ...]:
    by_length = sorted((example.prompt_token_ids for example in examples), key=len)
    return by_length[(len(by_length) - 1) // 2]
