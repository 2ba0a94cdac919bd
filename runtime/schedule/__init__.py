"""Exit schedules: how many layers, and which, each generated token runs."""

from .schedule import ExitSchedule, LayerPlan, Segment, realised_depth

__all__ = ["ExitSchedule", "LayerPlan", "Segment", "realised_depth"]
