"""From a plan to transformers' Trainer and back to plain weights."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import torch
from transformers import (
    OPTForCausalLM,
    PrinterCallback,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

from .skip_model import SkipOPTForCausalLM
from .tune_batches import ExampleDataset, collate
from .tune_config import LoraConfig, TuneConfig
from .tune_divergence import DivergenceCheck, are_finite, divergence, everywhere
from .tune_events import TuneEvents
from .tune_trainer import SkipTrainer

if TYPE_CHECKING:
    from peft import PeftModel

    from .tune_plan import TuningPlan

_LORA_TARGETS = ["q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2"]
_SCHEDULERS = {"linear": "linear", "cosine": "cosine", "constant": "constant_with_warmup"}


def make_trainer(plan: TuningPlan, model: SkipOPTForCausalLM, events: TuneEvents) -> SkipTrainer:
    """The Trainer that ``plan`` asks for; ``model`` holds the start weights."""
    config = plan.config
    trainer = SkipTrainer(
        model=model if config.lora is None else _with_adapters(model, config.lora),
        args=training_arguments(config, str(plan.directories.checkpoints)),
        train_dataset=ExampleDataset(plan.data.examples, learn_prompt=config.learn_prompt),
        data_collator=collate,
        callbacks=[_Watcher(events), DivergenceCheck(plan)],
        groups_lengths=config.group_by_length,
        schedules=plan.schedules,
        target=plan.schedule,
        distillation=config.distillation,
        teacher=None if config.distillation is None else plan.start.load(),
    )
    trainer.remove_callback(PrinterCallback)  # it writes to stdout, where results go
    return trainer


def training_arguments(config: TuneConfig, directory: str) -> TrainingArguments:
    """Trainer's options; a CPU where there is no CUDA device, or where it is asked for."""
    return TrainingArguments(
        output_dir=directory,
        learning_rate=config.learning_rate,
        lr_scheduler_type=_SCHEDULERS[config.decay],
        warmup_steps=config.warmup_fraction,  # below 1: a fraction
        weight_decay=config.weight_decay,
        num_train_epochs=config.epochs,
        max_steps=config.max_steps or -1,
        per_device_train_batch_size=config.batch_size,
        gradient_accumulation_steps=config.gradient_accumulation,
        bf16=config.bf16,
        activation_checkpointing=config.gradient_checkpointing,
        activation_checkpointing_kwargs={"use_reentrant": False},
        seed=config.seed,
        logging_steps=config.logging_steps,
        logging_first_step=True,
        logging_nan_inf_filter=False,  # DivergenceCheck sees them
        save_steps=config.save_steps,
        save_total_limit=2,
        use_cpu=config.device == "cpu" or not torch.cuda.is_available(),
        remove_unused_columns=False,
        ddp_find_unused_parameters=False,  # prompts run every layer
        report_to="none",
        disable_tqdm=True,
    )


def tuned_weights(
    plan: TuningPlan, trainer: SkipTrainer, dtype: torch.dtype
) -> tuple[OPTForCausalLM, int] | None:
    """Transformers' own model with the tuned weights, adapters merged, and how many were trained.

    Weights of all processes are gathered; None but in the main one. Raises SkipDecError in each of
    them if the weights, as they would be written, are not finite.
    """
    tuned = _gathered(plan, trainer, dtype)
    finite = tuned is None or are_finite(tuned[0].parameters())
    if not everywhere(finite, trainer.args.device):
        raise divergence(plan, f"weights are not finite as {plan.config.save_dtype}")
    return tuned


def _gathered(
    plan: TuningPlan, trainer: SkipTrainer, dtype: torch.dtype
) -> tuple[OPTForCausalLM, int] | None:
    trained = sum(weight.numel() for weight in trainer.model.parameters() if weight.requires_grad)
    state = trainer.accelerator.get_state_dict(trainer.model_wrapped)
    if not trainer.is_world_process_zero():
        return None
    source = trainer.accelerator.unwrap_model(trainer.model)
    if plan.config.lora is not None:  # merged in a copy: what was trained may be in shards
        adapted = _with_adapters(plan.start.load(), plan.config.lora)
        adapted.load_state_dict(state)
        source = adapted.merge_and_unload()
        state = source.state_dict()
    with torch.device("meta"):
        plain = OPTForCausalLM(source.config)
    plain.load_state_dict(state, assign=True)
    plain.tie_weights()
    plain.generation_config = source.generation_config
    return plain.to(dtype).eval(), trained


def _with_adapters(model: SkipOPTForCausalLM, config: LoraConfig) -> PeftModel:
    import peft

    adapters = peft.LoraConfig(
        r=config.rank,
        lora_alpha=config.alpha,
        lora_dropout=config.dropout,
        target_modules=_LORA_TARGETS,
    )
    with warnings.catch_warnings():  # peft reads the property that transformers renamed
        warnings.filterwarnings(
            "ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning
        )
        return peft.get_peft_model(model, adapters)


class _Watcher(TrainerCallback):  # type: ignore[misc]  # transformers is untyped
    """Passes Trainer's events on."""

    def __init__(self, events: TuneEvents) -> None:
        self._events = events

    def on_step_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **_: Any,  # noqa: ANN401  (Trainer's)
    ) -> None:
        if state.is_world_process_zero:
            self._events.step_finished(state.global_step, state.max_steps)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **_: Any,  # noqa: ANN401  (Trainer's)
    ) -> None:
        if state.is_world_process_zero and logs is not None and "loss" in logs:
            self._events.loss_logged(state.global_step, logs["loss"])
