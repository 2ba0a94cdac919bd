"""Turn a plan into transformers' Trainer, and its result into plain weights."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from accelerate.utils import gather
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn import functional as F
from transformers import (
    PreTrainedModel,
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

from ...engines.documents import naming_failed_write
from ...engines.errors import SkipDecError
from ...engines.host.events import Events
from ...engines.host.signals import Interrupted, Interruption
from ...runtime.schedule import ExitSchedule
from .allocation import return_free_memory
from .batches import ExampleDataset, SortedSteps, collate
from .config import TuneConfig
from .draft import step_spans
from .family import tuning_family
from .model import IGNORED_LABEL, SkipModel
from .plan import StepSchedules, TuningPlan
from .work import is_sharded, seal_save

if TYPE_CHECKING:
    from peft import PeftModel

_STOPPING = "ending this step, then saving for --resume; Ctrl-C again stops at once, without a save"
_STEPS_PER_RETURN = 64  # of free memory, which the next step must allocate again
_SCHEDULERS = {"linear": "linear", "cosine": "cosine", "constant": "constant_with_warmup"}


def make_trainer(plan: TuningPlan, model: SkipModel, events: Events) -> SkipTrainer:
    """Return the Trainer for ``plan``; ``model`` holds the start weights."""
    config = plan.config
    return SkipTrainer(
        **trainer_keywords(plan, events),
        model=model if config.lora is None else _with_adapters(plan, model, config.lora),
        schedules=plan.schedules,
        distill=config.distill or 0.0,
        teacher=None if config.distill is None else plan.start.load(),
        drafting=None if config.draft is None else Drafting(config.draft.weight, plan.layers_used),
    )


def trainer_keywords(plan: TuningPlan, events: Events) -> dict[str, Any]:
    """Return the keywords of every Trainer of ``plan``: its options, examples and observer."""
    config, interruption = plan.config, Interruption(partial(events.note, _STOPPING))
    return {
        "interruption": interruption,
        "args": training_arguments(config, str(plan.directories.checkpoints)),
        "train_dataset": ExampleDataset(plan.data.examples),
        "data_collator": collate,
        "callbacks": [Watcher(plan, events, interruption)],
    }


def train(plan: TuningPlan, trainer: OrderedTrainer) -> None:
    """Train from the start, or from the save that ``plan`` resumes.

    If a save can't be written, the error names its directory. After a signal the step ends and is
    saved. Then the signal is delivered and, if its handler returns, Interrupted is raised. A second
    signal interrupts at once.
    """
    resumed = None if plan.resumed is None else str(plan.resumed)
    failed_write = naming_failed_write(plan.directories.work, SafetensorError, RuntimeError)
    with failed_write, trainer.interruption:
        trainer.train(resume_from_checkpoint=resumed)
    trainer.interruption.raise_again()
    if trainer.interruption.number is not None:
        raise Interrupted(trainer.interruption.number)


def training_arguments(config: TuneConfig, directory: str) -> TrainingArguments:
    """Return Trainer's options, on a CPU if there is no CUDA device or the CPU is requested.

    A process uses one GPU, because Trainer would divide batches among all visible GPUs, and a run
    would depend on their number. torchrun starts a process for each GPU.
    """
    arguments = TrainingArguments(
        output_dir=directory,
        learning_rate=config.learning_rate,
        lr_scheduler_type=_SCHEDULERS[config.decay],
        warmup_steps=config.warmup_fraction,  # below 1: a fraction
        weight_decay=config.weight_decay,
        num_train_epochs=config.epochs or 1.0,
        max_steps=config.max_steps or -1,
        per_device_train_batch_size=config.batch_size,
        gradient_accumulation_steps=config.gradient_accumulation,
        bf16=config.bf16,
        activation_checkpointing=config.gradient_checkpointing,
        activation_checkpointing_kwargs={"use_reentrant": False},
        seed=config.seed,
        logging_steps=config.logging_steps,
        logging_first_step=True,
        logging_nan_inf_filter=False,  # Watcher stops at them
        save_steps=config.save_steps,
        save_total_limit=2,
        use_cpu=config.device == "cpu" or not torch.cuda.is_available(),
        remove_unused_columns=False,
        ddp_find_unused_parameters=False,  # prompts run every layer
        report_to="none",
        disable_tqdm=True,
    )
    arguments._n_gpu = min(1, arguments.n_gpu)
    return arguments


def measuring_device(config: TuneConfig) -> torch.device:
    """Return the device for held-out examples: Trainer's, unless weights are sharded.

    A sharded model may not fit into one device, so it is measured on the CPU.
    """
    if is_sharded():
        return torch.device("cpu")
    device: torch.device = training_arguments(config, str(config.output)).device
    return device


def gathered_weights(plan: TuningPlan, trainer: OrderedTrainer) -> PreTrainedModel | None:
    """Return transformers' own model with the tuned weights, in the type that is written.

    Merges adapters and gathers the weights of all processes; returns None outside the main process.
    """
    state = trainer.accelerator.get_state_dict(trainer.model_wrapped)
    if not trainer.is_world_process_zero():
        return None
    source = trainer.accelerator.unwrap_model(trainer.model)
    if plan.config.lora is not None:  # merged in a copy, as the trained weights may be sharded
        adapted = _with_adapters(plan, plan.start.load(), plan.config.lora)
        adapted.load_state_dict(state)
        source = adapted.merge_and_unload()
        state = source.state_dict()
    with torch.device("meta"):
        plain = source.plain_class(source.config)
    plain.load_state_dict(state, assign=True)
    plain.tie_weights()
    return plain.to(getattr(torch, plan.config.save_dtype)).eval()


def _with_adapters(plan: TuningPlan, model: SkipModel, rank: int) -> PeftModel:
    import peft

    targets = list(tuning_family(plan.model.family).adapter_targets)
    adapters = peft.LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=targets)
    with warnings.catch_warnings():  # peft reads a property that transformers renamed
        warnings.filterwarnings(
            "ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning
        )
        return peft.get_peft_model(model, adapters)


class Watcher(TrainerCallback):  # type: ignore[misc]  # transformers is untyped
    """Forwards Trainer's events, seals its saves, and stops a run that diverges or is interrupted.

    Losses and weights that are not finite raise SkipDecError in all processes, before a save.
    """

    def __init__(self, plan: TuningPlan, events: Events, interruption: Interruption) -> None:
        self._plan, self._events = plan, events
        self._interruption = interruption

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **_: Any,  # noqa: ANN401  (Trainer's)
    ) -> None:
        """Announce the steps, and those that are already done."""
        # A resumed run would use those of its save.
        state.logging_steps = args.logging_steps
        state.save_steps = args.save_steps
        if state.is_world_process_zero:
            self._events.stage("tuning", state.max_steps)
            if state.global_step:
                self._events.advance("resumed", state.global_step)

    def on_step_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: nn.Module,
        **_: Any,  # noqa: ANN401  (Trainer's)
    ) -> None:
        """Count a step; save if a process was interrupted; check the weights before a save."""
        if state.global_step % _STEPS_PER_RETURN == 0:
            return_free_memory()
        if state.global_step >= state.max_steps:
            control.should_log = True  # so that a short run's curve has an end, too
        if state.is_world_process_zero:
            self._events.advance()
        if not everywhere(not self._interruption.is_requested(), args.device):
            control.should_save = control.should_training_stop = True
        if not control.should_save:
            return
        control.should_log = True  # Trainer forgets the losses since the last log when it resumes
        if not everywhere(are_finite(model.parameters()), args.device):
            what = f"weights are not finite after step {state.global_step}"
            raise divergence(self._plan, what)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float],
        **_: Any,  # noqa: ANN401  (Trainer's)
    ) -> None:
        """Show the loss; stop a run whose loss is not finite."""
        if (loss := logs.get("loss")) is None:
            return
        if state.is_world_process_zero:
            self._events.status(f"step {state.global_step}: loss {loss:.3f}")
        if not isfinite(loss):  # the mean over all processes
            raise divergence(self._plan, f"the training loss is {loss} at step {state.global_step}")

    def on_save(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **_: Any,  # noqa: ANN401  (Trainer's)
    ) -> None:
        """Seal the save that all processes have written."""
        everywhere(True, args.device)  # waits for all processes to write their parts
        if state.is_world_process_zero:
            seal_save(Path(args.output_dir) / f"checkpoint-{state.global_step}")


class OrderedTrainer(Trainer):  # type: ignore[misc]  # transformers is untyped
    """Trains on an ExampleDataset in an order that a resumed run continues."""

    def __init__(
        self,
        *args: Any,  # noqa: ANN401  (Trainer's own)
        interruption: Interruption,
        **kwargs: Any,  # noqa: ANN401
    ) -> None:
        super().__init__(*args, **kwargs)
        self.interruption = interruption
        self.remove_callback(PrinterCallback)  # writes to stdout, which is for results

    def _get_train_sampler(self, train_dataset: ExampleDataset | None = None) -> Any:  # noqa: ANN401
        """Override Trainer's order of examples, which a resumed run would lose."""
        dataset: ExampleDataset = train_dataset or self.train_dataset
        rows = (  # rows of one step, in all processes
            self.args.train_batch_size
            * self.args.gradient_accumulation_steps
            * self.args.world_size
        )
        return SortedSteps(
            dataset.lengths, rows, self.args.seed, lambda: int(self.state.epoch or 0)
        )

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:  # noqa: ANN401
        """Return Trainer's learning rates; a single step has no warm-up, whose first rate is 0."""
        if num_training_steps == 1:
            self.args.warmup_steps = 0
        return super().create_scheduler(num_training_steps, optimizer)

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device
    ) -> Any:  # noqa: ANN401  (Trainer's: a step's batches, and their number of labels)
        """Return no batches after the last step, where Trainer would run one more on resuming."""
        if self.state.global_step >= self.state.max_steps:
            return [], None
        return super().get_batch_samples(epoch_iterator, num_batches, device)

    def mean(self, total: Tensor, count: int, num_items_in_batch: Tensor | int | None) -> Tensor:
        """Return a part's summed loss over ``count`` labels as its share of the step's mean."""
        if num_items_in_batch is None:
            return total / count
        # Gradients of several processes are averaged; this makes the result their sum.
        processes: int = self.accelerator.num_processes
        return total * processes / num_items_in_batch


@dataclass(frozen=True)
class Drafting:
    """The layers that a draft runs, and the share of drafts in the loss."""

    weight: float
    layers: tuple[int, ...]


class SkipTrainer(OrderedTrainer):
    """Trains at the schedule of the step.

    ``teacher``, whose weight in the loss is ``distill``, runs at full depth and is moved to the
    device of the model. With ``drafting``, the schedule is full depth and drafts are a part of the
    loss.
    """

    def __init__(
        self,
        *args: Any,  # noqa: ANN401  (Trainer's own)
        schedules: StepSchedules,
        distill: float = 0.0,
        teacher: SkipModel | None = None,
        drafting: Drafting | None = None,
        **kwargs: Any,  # noqa: ANN401
    ) -> None:
        super().__init__(*args, **kwargs)
        self._schedules = schedules
        self._distill = distill
        self._teacher = None if teacher is None else teacher.to(self.args.device).eval()
        self._drafting = drafting

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Tensor],
        num_items_in_batch: Tensor | int | None = None,
    ) -> Tensor:
        """Return the mean loss over the labels of the whole step, in all parts and processes."""
        step, drafting = self.state.global_step, self._drafting
        schedule = self._schedules(step)
        spans = None
        if drafting is not None:
            spans = step_spans(drafting.layers, step, self.args.seed)
        outputs = model(**inputs, schedule=schedule, spans=spans)
        shifted = inputs["labels"][:, 1:]
        targets = shifted[shifted != IGNORED_LABEL]  # [R]
        total = F.cross_entropy(outputs.logits, targets, reduction="sum")
        if self._teacher is not None:
            full = ExitSchedule.full(schedule.num_layers)
            with torch.no_grad(), self.accelerator.autocast():
                wanted = self._teacher(**inputs, schedule=full).logits.float()  # [R, V]
            from_teacher = kl_divergence(outputs.logits, wanted)
            total = (1 - self._distill) * total + self._distill * from_teacher
        if drafting is not None:
            from_full = kl_divergence(outputs.draft_logits, outputs.logits.detach())
            total = (1 - drafting.weight) * total + drafting.weight * from_full
        return self.mean(total, targets.numel(), num_items_in_batch)


def kl_divergence(logits: Tensor, wanted: Tensor) -> Tensor:
    """Return KL(wanted ‖ logits) of two lists of logits [R, V], summed over the rows, in nats."""
    return F.kl_div(
        logits.log_softmax(-1), wanted.log_softmax(-1), reduction="sum", log_target=True
    )


def are_finite(weights: Iterable[Tensor]) -> bool:
    """Return True if all weights are finite; of sharded weights, checks this process's part."""
    local = (w.to_local() if isinstance(w, DTensor) else w for w in weights)
    return all(bool(torch.isfinite(weight).all()) for weight in local)


def everywhere(fact: bool, device: torch.device) -> bool:
    """Return True if ``fact`` holds in every process; every process must call this."""
    return bool(gather(torch.tensor([int(fact)], device=device)).all())


def require_finite(plan: TuningPlan, is_finite: bool, device: torch.device) -> None:
    """Raise SkipDecError in every process unless all weights are finite in the written type."""
    if not everywhere(is_finite, device):
        raise divergence(plan, f"weights are not finite as {plan.config.save_dtype}")


def divergence(plan: TuningPlan, what: str) -> SkipDecError:
    """Return the error that reports ``what``, possible remedies, and the remaining saves."""
    config = plan.config
    remedies = [f"lower --learning-rate (it is {config.learning_rate:g})"]
    if config.bf16:
        remedies.append("leave out --bf16")
    if config.save_dtype == "float16":
        remedies.append("leave out save_dtype float16")
    text = f"{what}, and nothing was published; {', '.join(remedies)}, or look at the data"
    last = plan.directories.last_save()
    if last is not None:
        step = last.name.removeprefix("checkpoint-")
        text += (
            f"; the save of step {step} stays in {plan.directories.work}: delete it to start "
            "over (--resume continues with the same options)"
        )
    return SkipDecError(str(plan.directories.output), text)
