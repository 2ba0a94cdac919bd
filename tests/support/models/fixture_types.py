"""Define the types of fixtures that most tests use."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

Checkpoints = Callable[[str], Path]
"""``checkpoint(structure)``."""
Exported = Callable[..., Path]
"""``exported(structure, quantize=..., dtype=...)``."""
