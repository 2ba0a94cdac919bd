"""Options of a tuning."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from ...engines.checking import Option, ValidatedConfig
from ...engines.constants import integer
from ...engines.manifest import MAX_TOKENS
from ..data.data import DataConfig

DEFAULT_VOCAB_SIZE = 2000
FULL = "full"  # the schedule that runs every layer

_FOR_WHOLE_MODELS = ("from_scratch", "distill", "lora", "gradient_checkpointing")
_SPEC = Option(metavar="SPEC")
_DRAFT_LAYER_RATE = 2e-3
_MAX_ROWS = integer("max_rows")  # of a batch, and of an adapter's matrix


class DraftObjective(ValidatedConfig):
    """Training of a model's own drafts: part of the loss is their KL divergence from full depth.

    The loss is (1 − weight)·rest + weight·KL(full depth ‖ draft). The rest is cross-entropy on
    labels, blended with KL divergence from the start checkpoint by ``distill``. With ``distill`` 1,
    labels have no influence, and full depth changes least.
    """

    layers: Annotated[str, Option("--draft", metavar="SPEC")] = Field(
        description="tune full depth and a draft: ends:3 or first:3"
    )
    weight: float = Field(
        default=0.5, gt=0, le=1, description="weight of drafts in the loss, for --draft"
    )


class TuneConfig(ValidatedConfig):
    """Options of a tuning: model, schedule, data, learning and running.

    ``model`` is a directory or hub id; None with ``from_scratch``. ``schedule`` is in text form;
    without a horizon it gets the data's median completion length. It is required, except with
    ``draft`` and ``draft_layer``, which train at full depth. ``max_steps`` replaces ``epochs``. The
    learning rate rises linearly over ``warmup_fraction`` of the steps.

    ``mixture``: each step draws one of these schedules, the target and full depth. ``distill`` w
    makes the loss (1 − w)·cross-entropy + w·KL(start checkpoint at full depth ‖ model). ``lora``
    trains low-rank adapters of this rank, scaled by 2, and merges them into the weights at the end.

    ``draft`` tunes full depth together with drafts that run some of its layers. ``draft_layer``
    leaves the model unchanged and trains an additional decoder layer that reads full depth's
    states, with a norm and a head of its own for the most frequent tokens of the data. It begins as
    the model's last layer, or as ``start_layer``, whose tokens it keeps.

    Losses before and after, at the schedule and at full depth, and how many drafts hold are
    measured on the first 512 examples of the ``validation`` data. ``validation`` may also be the
    path of another file, which is read with the same options as ``data``.
    """

    model: Annotated[str | None, Option(metavar="MODEL", is_argument=True)] = Field(
        default=None,
        description="opt-125m, …, a hub id, or a directory with config.json; not with "
        "--from-scratch",
    )
    output: Annotated[Path, Option("-o", metavar="DIR")] = Field(description="the tuned checkpoint")
    from_scratch: Annotated[str | None, Option(metavar="SIZES")] = Field(
        default=None,
        description="layers=12,width=256,heads=4[,family=llama,ffn=,…]",
    )
    vocab_size: Annotated[int | None, Option()] = Field(
        default=None,
        ge=300,
        le=MAX_TOKENS,
        description="vocabulary of the tokenizer to train (2000)",
    )
    save_dtype: Literal["float32", "float16", "bfloat16"] = Field(
        default="float32", description="type of the written weights"
    )
    data: Annotated[DataConfig, Option()]
    validation: Annotated[DataConfig | None, Option(metavar="FILE")] = Field(
        default=None, description="held-out data for losses before and after"
    )
    max_length: Annotated[int | None, Option()] = Field(
        default=None,
        ge=2,
        description="prompt + completion (the model's, at most 8192; data self: 512)",
    )
    learning_rate: Annotated[float, Option()] = Field(
        default=1e-4,
        gt=0,
        description="fresh and small models: 1e-3 to 3e-3; a draft layer: 2e-3 if not given",
    )
    warmup_fraction: float = Field(
        default=0.05, ge=0, lt=1, description="part of the steps in which the learning rate rises"
    )
    decay: Literal["linear", "cosine", "constant"] = Field(
        default="linear", description="course of the learning rate afterwards"
    )
    weight_decay: float = Field(default=0.01, ge=0, description="weight decay of the optimizer")
    epochs: Annotated[float | None, Option()] = Field(
        default=None, gt=0, description="passes over the data (1)"
    )
    max_steps: Annotated[int | None, Option()] = Field(
        default=None, ge=1, description="instead of --epochs"
    )
    batch_size: Annotated[int, Option("-b")] = Field(
        default=16, ge=1, le=_MAX_ROWS, description="examples per device and batch"
    )
    gradient_accumulation: int = Field(default=1, ge=1, description="batches per step")
    lora: Annotated[int | None, Option(metavar="RANK")] = Field(
        default=None, ge=1, le=_MAX_ROWS, description="train adapters only; needs peft"
    )
    seed: int = Field(
        default=0, ge=0, le=2**32 - 1, description="seed of data order and fresh weights"
    )
    schedule: Annotated[str | None, _SPEC] = Field(
        default=None, description="full, 2x, linear:max=8,min=4,… (full with drafts, else required)"
    )
    distill: Annotated[float | None, Option(metavar="WEIGHT")] = Field(
        default=None, gt=0, le=1, description="weight of the teacher at full depth, 0 to 1"
    )
    mixture: Annotated[tuple[str, ...], _SPEC] = Field(
        default=(), description="repeat: steps draw one, the target, or full"
    )
    draft: Annotated[DraftObjective | None, Option()] = None
    draft_layer: Annotated[bool, Option()] = Field(
        default=False, description="freeze the model and train a layer that drafts for it"
    )
    start_layer: Annotated[Path | None, Option(metavar="DIR")] = Field(
        default=None, description="a draft layer to train further, best on other texts"
    )
    bf16: Annotated[bool, Option()] = Field(default=False, description="mixed precision")
    gradient_checkpointing: bool = Field(default=False, description="less memory, more time")
    device: Literal["auto", "cpu"] = Field(default="auto", description="auto: CUDA if available")
    logging_steps: int = Field(default=10, ge=1, description="between logged losses")
    save_steps: int = Field(default=500, ge=1, description="between saves that --resume can use")
    resume: Annotated[bool, Option()] = Field(
        default=False, description="continue from the last save"
    )
    force: Annotated[bool, Option()] = Field(
        default=False, description="replace a previously tuned checkpoint"
    )

    @model_validator(mode="before")
    @classmethod
    def _filled_in(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Add a draft layer's learning rate; read validation data as the others."""
        if values.get("draft_layer"):
            values = {"learning_rate": _DRAFT_LAYER_RATE} | values
        path, data = values.get("validation"), values.get("data")
        if isinstance(path, str | Path) and isinstance(data, dict | DataConfig):
            return values | {"validation": dict(data) | {"path": path}}
        return values

    def _problems(self) -> Iterator[str]:
        if (self.model is None) == (self.from_scratch is None):
            yield (
                f"`model` is {self.model!r} and `from_scratch` is {self.from_scratch!r}; give one "
                "of them: a checkpoint to tune, or the sizes of a new model"
            )
        if self.from_scratch is not None:
            for field in ("lora", "distill"):
                if getattr(self, field) is not None:
                    yield f"`{field}` needs a trained model; leave it out with `from_scratch`"
            if self.data.own_texts is not None:
                yield f"`data.path` is {self.data.path}, which a trained model writes; give a file"
        elif self.vocab_size is not None:
            yield "`vocab_size` needs `from_scratch`"
        if self.validation is not None and self.validation.own_texts is not None:
            yield (
                f"`validation` is {self.validation.path}; give a file, or leave it out: some of "
                "the data that a model writes itself is held out"
            )
        if self.epochs is not None and self.max_steps is not None:
            yield f"`epochs` and `max_steps` {self.max_steps} are both given; leave one of them out"
        yield from self._draft_problems()

    def _draft_problems(self) -> Iterator[str]:
        """Yield a problem for each option that contradicts ``draft`` or ``draft_layer``."""
        if self.start_layer is not None and not self.draft_layer:
            yield f"`start_layer` {self.start_layer} is trained further with `draft_layer`; add it"
        if self.draft is None and not self.draft_layer:
            if self.schedule is None:
                yield "`schedule` is missing; give one, e.g. 2x, or full"
            return
        goal = "draft_layer" if self.draft_layer else "draft.layers"
        if self.draft is not None and self.draft_layer:
            yield (
                f"`draft.layers` {self.draft.layers} tunes the model and `draft_layer` leaves it "
                "as it is; give one of them"
            )
        if self.schedule not in (None, FULL):
            yield (
                f"`schedule` is {self.schedule!r}; `{goal}` trains at full depth: leave `schedule` "
                "out (a model tuned with `mixture` to skip layers drafts well without it)"
            )
        if self.mixture:
            yield f"`mixture` changes the depth; `{goal}` trains at full depth: leave it out"
        if self.draft_layer:
            for field in _FOR_WHOLE_MODELS:
                if getattr(self, field):
                    yield f"`{field}` trains the model, which `{goal}` freezes; leave it out"
