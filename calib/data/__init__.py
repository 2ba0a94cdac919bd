"""Examples, prompts with completions, as texts and as tokens."""

from .data import DataConfig

__all__ = ["DataConfig"]
