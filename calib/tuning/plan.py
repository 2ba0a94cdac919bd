"""Open and check everything that a tuning needs before any work."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from ...engines.checking import Problems
from ...engines.errors import MissingExtraError, UsageError, counted
from ...engines.host.events import Events
from ...engines.host.installation import install_command, is_installed, require_extra
from ...engines.manifest import ModelSpec
from ...exporter.checkpoint.draft_layer import TrainedDraftLayer, read_draft_layer
from ...runtime.schedule import ExitSchedule
from ...runtime.schedule.text import format_schedule, parse_schedule
from ..data.data import DataConfig, Example, load_examples
from ..data.lengths import text_length
from ..data.own_texts import OwnTexts, own_texts_path
from ..data.self_written import own_examples
from ..data.tokenised import ExampleEncoder, TokenisedData, TokenisedExample, tokenise
from .config import FULL, TuneConfig
from .draft import layers_read, layers_run
from .start import StartModel, open_start
from .work import TuningDirectories, directories_of, is_sharded, num_processes

VALIDATION_EXAMPLES = 512  # measured at most
_OWN_HELD_OUT = 20  # one in this many self-written texts is held out
StepSchedules = Callable[[int], ExitSchedule]
"""Returns the schedule of an optimizer step, from 0."""


@dataclass(frozen=True)
class TuningPlan:
    """A checked tuning: start model, data, schedules. ``warnings`` are for the user.

    ``horizon_is_median``: the schedule got its horizon from the data. ``resumed``: the save from
    which an interrupted run continues. ``began``: when the run first started, which is the date for
    chat templates. ``layers_used``: the layers that drafts run, or after how many layers a draft
    layer reads states; empty without either. ``start_layer``: the draft layer to train further.
    """

    config: TuneConfig
    directories: TuningDirectories
    start: StartModel
    schedule: ExitSchedule
    horizon_is_median: bool
    schedules: StepSchedules
    data: TokenisedData
    validation: TokenisedData | None
    resumed: Path | None
    began: datetime
    warnings: tuple[str, ...]
    layers_used: tuple[int, ...] = ()
    start_layer: TrainedDraftLayer | None = None

    @property
    def model(self) -> ModelSpec:
        """The structure of the model."""
        return self.start.spec

    @property
    def summary(self) -> str:
        """Summary of model, data and schedule, one fact per line."""
        share = depth_share(self.schedule, self.data.examples)
        config, drafts = self.config, []
        if config.draft is not None:
            drafts = [
                f"drafts {config.draft.layers}: layers {', '.join(map(str, self.layers_used))}"
            ]
        if config.draft_layer:
            drafts = [
                f"a draft layer that reads states after "
                f"{', '.join(map(str, self.layers_used))} layers; the model is frozen",
                *([f"begins as {config.start_layer}"] if config.start_layer else []),
            ]
        written = []
        if config.data.own_texts is not None:
            written = [
                f"data in {own_texts_path(self.directories.output)}, written by the model itself"
            ]
        horizon = f"horizon {self.schedule.horizon}: the median completion, in tokens"
        return "\n".join(
            (
                f"{self.model.name}: {counted(len(self.data.examples), 'example')}",
                *written,
                f"schedule {format_schedule(self.schedule)}: {share:.0%} of full depth over the "
                "data, prompts included",
                *([horizon] if self.horizon_is_median else []),
                *drafts,
            )
        )


def plan_tuning(config: TuneConfig, events: Events | None = None) -> TuningPlan:
    """Read the data, open the model and parse the schedules.

    Writes nothing except the hub's cache and, after all other checks, the texts that the model
    writes itself.

    ``events`` receives the stage ``checking`` and what was checked.

    Raises one SkipDecError with every problem found: missing packages, an output that exists, bad
    lines of the data, prompts longer than the model's maximum, schedules of another depth.
    """
    require_extra("calib", "skipdec tune")
    problems, events = Problems("tune"), events or Events()
    events.stage("checking", 4)
    directories = directories_of(config)
    problems.attempt(_check_adapters, config)
    problems.attempt(_check_sharding, config)
    reads = [one.path for one in (config.data, config.validation) if one is not None]
    problems.attempt(directories.check, force=config.force, resume=config.resume, reads=reads)
    resumed = directories.last_save() if config.resume else None
    began = datetime.now() if resumed is None else directories.began()
    is_own = config.data.own_texts is not None
    examples = None if is_own else problems.attempt(load_examples, config.data)
    events.advance("data")
    held_out = problems.attempt(_load_validation, config)
    events.advance("held-out data")
    start = problems.attempt(open_start, config, examples or [])
    if start is None:
        raise problems.error()
    events.advance("model")
    longest = problems.attempt(text_length, config.max_length, config.data, start.spec)
    layers_used = problems.attempt(_layers_used, config, start.spec.num_layers)
    layer = None
    if config.start_layer is not None and start.checkpoint is not None:
        layer = problems.attempt(read_draft_layer, config.start_layer, start.checkpoint)
    texts = (config.schedule or FULL, *config.mixture)
    for text in texts:  # at the longest horizon; that of the data is known only once it is read
        problems.attempt(_parse, text, start, start.spec.max_seq_len)
    if is_own:
        if longest is None or problems.errors:
            raise problems.error()
        examples = _own_examples(config, start, longest, directories, events)
        if config.validation is None:
            rest = len(examples) - min(VALIDATION_EXAMPLES, len(examples) // _OWN_HELD_OUT)
            examples, held_out = examples[:rest], examples[rest:] or None
    # Without examples, a fresh tokenizer has learnt nothing and would count too many tokens.
    if not examples and config.model is None:
        held_out = None
    data = validation = None
    if longest is not None:
        read = ((config.data, examples), (config.validation or config.data, held_out))
        data, validation = _tokenise(read, start, longest, began, problems)
    events.advance("tokens")
    if data is None or layers_used is None or problems.errors:
        raise problems.error()
    horizon = data.median_completion
    schedule, *mixture = (_parse(text, start, horizon) for text in texts)
    return TuningPlan(
        config=config,
        directories=directories,
        start=start,
        schedule=schedule,
        horizon_is_median=_parse(texts[0], start, horizon + 1) != schedule,
        schedules=step_schedules(schedule, mixture, config.seed),
        data=data,
        validation=validation,
        resumed=resumed,
        began=began,
        warnings=tuple(_warnings(config, data, validation, resumed)),
        layers_used=layers_used,
        start_layer=layer,
    )


def depth_share(schedule: ExitSchedule, examples: Sequence[TokenisedExample]) -> float:
    """Return the share of full depth's layer runs over all positions, prompts included.

    12 layers, a prompt of 40 tokens, 40 tokens fed back at a mean of 3: (480 + 120) / 960 = 0.625.
    """
    lengths = Counter(
        (len(example.prompt_token_ids), len(example.completion_token_ids) - 1)
        for example in examples
    )
    run = full = 0
    for (prompt, fed), count in lengths.items():
        run += count * sum(schedule.active_lengths(prompt, fed))
        full += count * (prompt + fed) * schedule.num_layers
    return run / full


def _check_adapters(config: TuneConfig) -> None:
    if config.lora is not None and not is_installed("peft"):
        raise MissingExtraError(
            "skipdec tune --lora", "needs peft, which is not installed; run: pip install peft"
        )


def _check_sharding(config: TuneConfig) -> None:
    if config.draft_layer and is_sharded():
        raise UsageError(
            "draft_layer",
            "is one layer, which is not sharded, nor is the frozen model; start the processes by "
            "torchrun, or by accelerate without FSDP",
        )


def _layers_used(config: TuneConfig, num_layers: int) -> tuple[int, ...]:
    """Return the layers that drafts run, or after which a draft layer reads; see `TuningPlan`.

    Raises UsageError for drafts that run as many layers as the model has.
    """
    if config.draft is not None:
        return layers_run(config.draft.layers, num_layers)
    return layers_read(num_layers) if config.draft_layer else ()


def _load_validation(config: TuneConfig) -> list[Example] | None:
    if config.validation is None:
        return None
    try:
        return load_examples(config.validation)[:VALIDATION_EXAMPLES]
    except UsageError as error:
        raise UsageError(f"validation {error.subject}", *error.problems) from None


def _own_examples(
    config: TuneConfig,
    start: StartModel,
    longest: int,
    directories: TuningDirectories,
    events: Events,
) -> list[Example]:
    """Return the texts that the model writes itself, after writing the missing ones.

    Raises UsageError if there are several processes, and the errors of `own_examples`.
    """
    count = config.data.own_texts
    assert count is not None
    assert start.checkpoint is not None
    texts = OwnTexts(
        path=own_texts_path(directories.output),
        checkpoint=start.checkpoint,
        count=count,
        max_length=longest,
        seed=config.seed,
    )
    if num_processes() > 1 and not texts.are_written:
        raise UsageError(
            "data self",
            "is written by one process; run the command without torchrun first, and stop it "
            "once the texts are written: they are kept",
        )
    may_use_gpu = config.device == "auto"
    return own_examples(texts, directories.work, may_use_gpu=may_use_gpu, events=events)


def _tokenise(
    read: Iterable[tuple[DataConfig, Sequence[Example] | None]],
    start: StartModel,
    longest: int,
    began: datetime,
    problems: Problems,
) -> Iterator[TokenisedData | None]:
    """Yield the model's tokens of each data set in ``read``; None where it could not be read.

    Chat templates get ``began`` as their date, so that a resumed run has the same data.
    """
    with closing(start.open_tokenizer()) as tokenizer:
        if tokenizer.chat is not None:
            tokenizer.chat.now = lambda: began
        for data, examples in read:
            encoder = ExampleEncoder.of(start.spec, tokenizer, data, start.prompt_template)
            encoder = replace(encoder, max_length=longest)
            yield None if examples is None else problems.attempt(tokenise, examples, encoder)


def _parse(text: str, start: StartModel, horizon: int) -> ExitSchedule:
    return parse_schedule(text, num_layers=start.spec.num_layers, horizon=horizon)


def _warnings(
    config: TuneConfig,
    data: TokenisedData,
    validation: TokenisedData | None,
    resumed: Path | None,
) -> list[str]:
    is_own = config.data.own_texts is not None  # whose long texts are meant to be cut
    warnings = [] if is_own else [*data.warnings]
    if config.resume and resumed is None:
        warnings.append("there is no save to resume, so the tuning begins anew")
    if validation is not None:
        warnings += [
            f"held out: {warning}"
            for warning in validation.warnings
            if warning != data.template.note
        ]
    elif config.draft is not None or config.draft_layer:
        warnings.append(
            "how many drafts hold is not measured; --validation FILE names held-out data"
        )
    if not is_installed("matplotlib") and not config.draft_layer:
        warnings.append(f"no curves: matplotlib is missing; run: {install_command('plot')}")
    return warnings


def step_schedules(
    target: ExitSchedule, mixture: Sequence[ExitSchedule], seed: int
) -> StepSchedules:
    """Return a function to a step's schedule: the target or, with ``mixture``, a random one.

    The mixture, the target and full depth are equally likely. The draw depends on seed and step
    alone, so that resumed runs and all processes agree.
    """
    choices = tuple(dict.fromkeys((ExitSchedule.full(target.num_layers), target, *mixture)))

    def draw(step: int) -> ExitSchedule:
        return random.Random(f"{seed}:{step}").choice(choices)

    return draw if mixture else lambda step: target
