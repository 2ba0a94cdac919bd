"""Ends tunings before a step."""

from __future__ import annotations

import signal
from typing import Any

from transformers import TrainerCallback


class Signal(TrainerCallback):  # type: ignore[misc]
    """Sends the process a signal in a step, as Ctrl-C or a service manager does."""

    def __init__(self, number: int, step: int) -> None:
        self.number, self.step = number, step

    def on_step_begin(self, args: object, state: Any, control: object, **_: object) -> None:  # noqa: ANN401
        if state.global_step == self.step:
            signal.raise_signal(self.number)


class Stop(TrainerCallback):  # type: ignore[misc]
    """Ends the process's work before a step, as a kill would."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_begin(self, args: object, state: Any, control: object, **_: object) -> None:  # noqa: ANN401
        if state.global_step == self.step:
            raise KeyboardInterrupt
