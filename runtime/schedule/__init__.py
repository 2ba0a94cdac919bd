"""Exit schedules: how many layers, and which, each generated token runs."""

from .plan import LayerPlan, Segment, realised_depth
from .schedule import ExitSchedule

__all__ = ["ExitSchedule", "LayerPlan", "Segment", "realised_depth"]
