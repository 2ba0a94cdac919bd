"""Interrupt tunings at a step."""

from __future__ import annotations

import signal
from typing import Any

import pytest
from transformers import TrainerCallback

from skipdec.calib.tuning import trainer as tune_training
from skipdec.calib.tuning.config import TuneConfig
from skipdec.calib.tuning.tuning import tune


def add_callback(callback: TrainerCallback, patch: pytest.MonkeyPatch) -> None:
    """Add a callback to every tuning, after its own callbacks."""
    train = tune_training.train

    def with_callback(plan: Any, trainer: Any) -> None:  # noqa: ANN401
        trainer.add_callback(callback)
        train(plan, trainer)

    patch.setattr(tune_training, "train", with_callback)


def interrupt(config: TuneConfig, stop: int | TrainerCallback, patch: pytest.MonkeyPatch) -> None:
    """Tune up to the step ``stop`` or until the callback raises KeyboardInterrupt."""
    with patch.context() as context:
        add_callback(Stop(stop) if isinstance(stop, int) else stop, context)
        with pytest.raises(KeyboardInterrupt):
            tune(config)


class Signal(TrainerCallback):  # type: ignore[misc]
    """Sends the process a signal in a step, as Ctrl-C or a service manager does."""

    def __init__(self, number: int, step: int) -> None:
        self.number, self.step = number, step

    def on_step_begin(self, args: object, state: Any, control: object, **_: object) -> None:  # noqa: ANN401
        if state.global_step == self.step:
            signal.raise_signal(self.number)


class Stop(TrainerCallback):  # type: ignore[misc]
    """Ends the work before a step, as a kill would."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_begin(self, args: object, state: Any, control: object, **_: object) -> None:  # noqa: ANN401
        if state.global_step == self.step:
            raise KeyboardInterrupt
