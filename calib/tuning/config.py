"""What a tuning is asked to do: one frozen value with a JSON round trip."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from pydantic import Field

from ...engines.checking import Problems, ValidatedConfig
from ...engines.errors import UsageError
from ..data.data import DataConfig


class LoraConfig(ValidatedConfig):
    """Low-rank adapters in place of all weights (peft), merged into the weights at the end."""

    rank: int = Field(default=16, ge=1)
    alpha: float = Field(default=32.0, gt=0)
    dropout: float = Field(default=0.0, ge=0, lt=1)


class DistillationConfig(ValidatedConfig):
    """KL divergence to the start checkpoint at full depth, beside the loss on the labels.

    The loss is (1 − weight)·cross-entropy + weight·temperature²·KL(teacher ‖ student), both
    distributions at ``temperature``.
    """

    weight: float = Field(default=0.5, gt=0, le=1)
    temperature: float = Field(default=1.0, gt=0)


class TuneConfig(ValidatedConfig):
    """One tuning: the model, its schedule, the data, and how long and how fast it learns.

    ``model`` is a directory or hub id, None with ``from_scratch``. ``schedule`` in text form; what
    names no horizon takes the median completion length of the data. ``max_steps`` takes the place
    of ``epochs``. ``warmup_fraction`` of the steps raise the learning rate linearly.

    ``curriculum``: over this fraction of the steps the depth shrinks from full to the schedule.
    ``mixture``: each step draws one of these schedules, the target and full depth. Losses before
    and after are measured on the ``validation`` data, at the schedule and at full depth.
    """

    model: str | None
    from_scratch: str | None = None
    vocab_size: int = Field(default=2000, ge=300)
    separator: str = "<sep>"
    output: Path
    data: DataConfig
    validation: DataConfig | None = None
    validation_examples: int = Field(default=512, ge=1, description="the first ones of the file")
    schedule: str
    learn_prompt: bool = False
    learning_rate: float = Field(default=1e-4, gt=0)
    warmup_fraction: float = Field(default=0.05, ge=0, lt=1)
    decay: Literal["linear", "cosine", "constant"] = "linear"
    weight_decay: float = Field(default=0.01, ge=0)
    epochs: float = Field(default=1.0, gt=0)
    max_steps: int | None = Field(default=None, ge=1)
    batch_size: int = Field(default=16, ge=1, description="examples a step, device and part")
    gradient_accumulation: int = Field(default=1, ge=1, description="parts of one step")
    group_by_length: bool = Field(
        default=False,
        description="whole steps of texts of like length: faster, but texts come out shorter",
    )
    max_length: int | None = Field(default=None, ge=2, description="None: the model's")
    bf16: bool = False
    gradient_checkpointing: bool = False
    device: Literal["auto", "cpu"] = "auto"
    lora: LoraConfig | None = None
    distillation: DistillationConfig | None = None
    curriculum: float | None = Field(default=None, gt=0, le=1)
    mixture: tuple[str, ...] = ()
    seed: int = Field(default=0, ge=0)
    logging_steps: int = Field(default=10, ge=1)
    save_steps: int = Field(default=500, ge=1)
    save_dtype: Literal["float32", "float16", "bfloat16"] = "float32"
    resume: bool = False
    force: bool = False

    def _problems(self) -> Iterator[str]:
        if (self.model is None) == (self.from_scratch is None):
            yield (
                f"model is {self.model!r} and from_scratch is {self.from_scratch!r}; give one of "
                "them: a checkpoint to tune, or the sizes of a new model"
            )
        if self.from_scratch is not None:
            for field in ("lora", "distillation"):
                if getattr(self, field) is not None:
                    yield f"{field} needs a trained model; leave it out with from_scratch"
        if self.curriculum is not None and self.mixture:
            yield (
                "curriculum and mixture both choose a step's schedule; give one of them, "
                f"curriculum is {self.curriculum}, mixture {', '.join(self.mixture)}"
            )
        if not self.separator:
            yield "separator is ''; allowed: a text that the data does not hold, e.g. '<sep>'"


def check_combinations(*needs: tuple[str, object, str, object], steps: int | None) -> None:
    """Raise UsageError for options that would do nothing.

    Each of ``needs``: an option, its value, the one that it needs, and that one's value; None is
    what was not given. ``steps``: those that are given beside epochs.
    """
    problems = Problems("tune")
    problems.errors += [
        UsageError(option, f"needs {other}")
        for option, value, other, others_value in needs
        if value is not None and others_value is None
    ]
    if steps is not None:
        problems.errors.append(
            UsageError("--epochs", f"is given beside --max-steps {steps}; leave one of them out")
        )
    if problems.errors:
        raise problems.error()


def adapters(rank: int | None, alpha: float | None) -> dict[str, float] | None:
    """LoraConfig's values; ``alpha`` None: twice the rank."""
    if rank is None:
        return None
    return {"rank": rank, "alpha": 2.0 * rank if alpha is None else alpha}


def distillation(weight: float | None, temperature: float | None) -> dict[str, float] | None:
    """DistillationConfig's values; ``temperature`` None: 1."""
    if weight is None:
        return None
    return {"weight": weight, "temperature": 1.0 if temperature is None else temperature}
