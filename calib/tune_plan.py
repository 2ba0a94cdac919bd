"""Everything that a tuning needs, opened and checked before any work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from importlib.util import find_spec

from ..engines.errors import MissingExtraError, UsageError
from ..engines.extras import require_extra
from ..engines.manifest import ModelSpec
from ..exporter.problems import Problems
from ..runtime.schedule import ExitSchedule
from ..runtime.schedule_text import parse_schedule
from .data import Example, load_examples
from .tokenised import TokenisedData, TokenisedExample, tokenise
from .tune_config import TuneConfig
from .tune_schedules import StepSchedules, step_schedules
from .tune_start import StartModel, open_start
from .tune_work import TuningDirectories


@dataclass(frozen=True)
class TuningPlan:
    """What is tuned, on what, towards which schedule. ``warnings`` are for people."""

    config: TuneConfig
    directories: TuningDirectories
    start: StartModel
    schedule: ExitSchedule
    schedules: StepSchedules
    data: TokenisedData
    validation: TokenisedData | None
    warnings: tuple[str, ...]

    @property
    def model(self) -> ModelSpec:
        """The structure of the model."""
        return self.start.spec

    @property
    def horizon_is_median(self) -> bool:
        """Whether the schedule's text left the horizon to the data."""
        return self.schedule.decay != "constant" and "horizon=" not in self.config.schedule


def plan_tuning(config: TuneConfig) -> TuningPlan:
    """Read the data, open the model, parse the schedules; nothing is written but the hub's cache.

    Raises one SkipDecError with every problem found: missing packages, an output that exists,
    bad lines of the data, prompts that are longer than the model, schedules of another depth.
    """
    require_extra("calib", "skipdec tune")
    problems = Problems("tune")
    directories = TuningDirectories(config.output.expanduser().absolute())
    problems.attempt(_check_adapters, config)
    problems.attempt(directories.check, force=config.force, resume=config.resume)
    examples = problems.attempt(load_examples, config.data)
    held_out = problems.attempt(_load_validation, config)
    start = problems.attempt(open_start, config, examples or [])
    if start is None or examples is None:
        raise problems.error()
    data = problems.attempt(_tokenise, config, start, examples)
    validation = problems.attempt(_tokenise, config, start, held_out) if held_out else None
    horizon = data.median_completion if data is not None else 1
    schedule = problems.attempt(_parse, config.schedule, start, horizon)
    mixture = [problems.attempt(_parse, text, start, horizon) for text in config.mixture]
    if schedule is None or data is None or problems.errors:
        raise problems.error()
    return TuningPlan(
        config=config,
        directories=directories,
        start=start,
        schedule=schedule,
        schedules=step_schedules(
            schedule,
            curriculum=config.curriculum,
            mixture=[parsed for parsed in mixture if parsed is not None],
            seed=config.seed,
        ),
        data=data,
        validation=validation,
        warnings=tuple(_warnings(config, data)),
    )


def depth_share(schedule: ExitSchedule, examples: Sequence[TokenisedExample]) -> float:
    """Positions run over all layers, divided by those at full depth; prompts included.

    12 layers, a prompt of 40 tokens, 40 tokens fed back at a mean of 3: (480 + 120) / 960 = 0.625.
    """
    run, full = Fraction(0), 0
    for example in examples:
        fed = len(example.completion_token_ids) - 1
        prompt = len(example.prompt_token_ids)
        depth = fed * Fraction(schedule.average_budget(fed)) if fed else Fraction(0)
        run += prompt * schedule.num_layers + depth
        full += (prompt + fed) * schedule.num_layers
    return float(run / full)


def _check_adapters(config: TuneConfig) -> None:
    if config.lora is not None and find_spec("peft") is None:
        raise MissingExtraError(
            "skipdec tune --lora", "needs peft, not installed here; run: pip install peft"
        )


def _load_validation(config: TuneConfig) -> list[Example] | None:
    if config.validation is None:
        return None
    return load_examples(config.validation)[: config.validation_examples]


def _tokenise(config: TuneConfig, start: StartModel, examples: Sequence[Example]) -> TokenisedData:
    longest = start.spec.max_seq_len
    wanted = config.max_length or longest
    if wanted > longest:
        raise UsageError("max_length", f"is {wanted}; allowed: at most the model's {longest}")
    return tokenise(
        examples,
        start.tokenizer,
        eos_token_id=start.eos_token_id,
        max_length=wanted,
        long_prompts=config.data.long_prompts,
        prompt_template=config.data.columns().prompt_template,
    )


def _parse(text: str, start: StartModel, horizon: int) -> ExitSchedule:
    return parse_schedule(text, num_layers=start.spec.num_layers, horizon=horizon)


def _warnings(config: TuneConfig, data: TokenisedData) -> list[str]:
    warnings = list(data.warnings)
    if data.num_truncated:
        warnings.append(
            f"{data.num_truncated} of {len(data.examples)} completions are cut off at the greatest "
            "length; raise --max-length, or shorten them"
        )
    if find_spec("matplotlib") is None:
        warnings.append("no curves: matplotlib is missing; run: pip install 'skipdec[plot]'")
    return warnings
