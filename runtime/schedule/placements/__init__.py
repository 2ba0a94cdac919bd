"""Which layers a budget runs: one file and one line of the registry a rule."""

from .placement import PLACEMENTS, Placement

__all__ = ["PLACEMENTS", "Placement"]
