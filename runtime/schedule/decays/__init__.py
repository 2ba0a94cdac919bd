"""Decays: the number of layers of each generated token. Each rule has a file and a line here."""

from .decay import DECAYS, Decay, FallingDecay

__all__ = ["DECAYS", "Decay", "FallingDecay"]
