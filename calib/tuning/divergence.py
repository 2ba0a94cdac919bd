"""A tuning that diverged: noticed before anything of it is saved or published."""

from __future__ import annotations

from collections.abc import Iterable
from math import isfinite
from typing import Any

import torch
from accelerate.utils import gather
from torch import Tensor
from torch.distributed.tensor import DTensor
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from ...engines.errors import SkipDecError
from .plan import TuningPlan


class DivergenceCheck(TrainerCallback):  # type: ignore[misc]  # transformers is untyped
    """Ends a training, in all its processes, at a loss or before a save that is not finite."""

    def __init__(self, plan: TuningPlan) -> None:
        self._plan = plan

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **_: Any,  # noqa: ANN401  (Trainer's)
    ) -> None:
        """Raise SkipDecError if the loss, the mean of all processes, is not finite."""
        loss = (logs or {}).get("loss", 0.0)
        if not isfinite(loss):
            raise divergence(self._plan, f"the training loss is {loss} at step {state.global_step}")

    def on_step_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: torch.nn.Module,
        **_: Any,  # noqa: ANN401  (Trainer's)
    ) -> None:
        """Raise SkipDecError if weights are about to be saved that are not finite."""
        if control.should_save and not everywhere(are_finite(model.parameters()), args.device):
            what = f"weights are not finite after step {state.global_step}"
            raise divergence(self._plan, what)


def are_finite(weights: Iterable[Tensor]) -> bool:
    """Whether no number is NaN or infinite; of sharded weights, this process's part."""
    local = (w.to_local() if isinstance(w, DTensor) else w for w in weights)
    return all(bool(torch.isfinite(weight).all()) for weight in local)


def everywhere(fact: bool, device: torch.device) -> bool:
    """Whether ``fact`` holds in every process; each of them calls this."""
    return bool(gather(torch.tensor([int(fact)], device=device)).all())


def divergence(plan: TuningPlan, what: str) -> SkipDecError:
    """The error for a tuning of which ``what`` is true: what to change, and what is left of it."""
    config = plan.config
    remedies = [f"lower --learning-rate (it is {config.learning_rate:g})"]
    if config.bf16:
        remedies.append("leave out --bf16")
    if config.save_dtype == "float16":
        remedies.append("leave out --save-dtype float16")
    text = f"{what}, and nothing was published; {', '.join(remedies)}, or look at the data"
    last = plan.directories.last_checkpoint()
    if last is not None:
        step = last.name.removeprefix("checkpoint-")
        text += (
            f"; the save of step {step} stays in {plan.directories.work}: delete that to start "
            "anew (--resume goes on with the same options)"
        )
    return SkipDecError(str(plan.directories.output), text)
