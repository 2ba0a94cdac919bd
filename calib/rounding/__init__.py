"""Round int4 weights with regard to the data that they will see (GPTQ)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...engines.registry import lazy_names

if TYPE_CHECKING:
    from .rounding import round_weights

__all__ = ["round_weights"]

__getattr__ = lazy_names(__name__, {"round_weights": ".rounding"})
