"""Stop a diverged tuning before anything of it is saved or published."""

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
    """Ends training in all processes if the loss, or a weight about to be saved, is not finite."""

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
        """Raise SkipDecError if the loss, averaged over all processes, is not finite."""
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
        """Raise SkipDecError if weights that are about to be saved are not finite."""
        if control.should_save and not everywhere(are_finite(model.parameters()), args.device):
            what = f"weights are not finite after step {state.global_step}"
            raise divergence(self._plan, what)


def are_finite(weights: Iterable[Tensor]) -> bool:
    """Return True if no number is NaN or infinite, in this process's part of sharded weights."""
    local = (w.to_local() if isinstance(w, DTensor) else w for w in weights)
    return all(bool(torch.isfinite(weight).all()) for weight in local)


def everywhere(fact: bool, device: torch.device) -> bool:
    """Return True if ``fact`` holds in every process; every process must call this."""
    return bool(gather(torch.tensor([int(fact)], device=device)).all())


def divergence(plan: TuningPlan, what: str) -> SkipDecError:
    """Return the error for ``what`` happened: possible remedies, and saves that remain."""
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
            f"; the save of step {step} stays in {plan.directories.work}: delete it to start "
            "over (--resume continues with the same options)"
        )
    return SkipDecError(str(plan.directories.output), text)
