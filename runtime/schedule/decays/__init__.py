"""How many layers a generated token runs: one file and one line of the registry a rule."""

from .decay import DECAYS, Decay, FallingDecay

__all__ = ["DECAYS", "Decay", "FallingDecay"]
