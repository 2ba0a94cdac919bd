"""Ends tunings before a step."""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback


class Stop(TrainerCallback):  # type: ignore[misc]
    """Ends the process's work before a step, as a kill would."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_begin(self, args: object, state: Any, control: object, **_: object) -> None:  # noqa: ANN401
        if state.global_step == self.step:
            raise KeyboardInterrupt
