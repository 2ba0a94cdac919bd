"""Make invented measurements of speed."""

from __future__ import annotations

from skipdec.calib.fitting.speed import MeasuredSpeedup
from skipdec.runtime.measuring.meter import Ratio
from skipdec.runtime.schedule import ExitSchedule


def measured_as(
    schedule: ExitSchedule, steps: float, prompt: float = 1.0, share: float = 0.5, lost: str = ""
) -> MeasuredSpeedup:
    """Return measured speed-ups of the steps and the prompt; ``lost`` if disturbed."""
    call = 1 / (share / prompt + (1 - share) / steps)
    ratios = (Ratio(value, value, value, lost) for value in (call, steps))
    return MeasuredSpeedup(schedule, *ratios, prompt, share, 3)
