"""int4 weights rounded against the data that they will see (GPTQ)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .rounding import round_weights

__all__ = ["round_weights"]


def __getattr__(name: str) -> Any:  # noqa: ANN401  (the module protocol's own signature)
    if name == "round_weights":
        from .rounding import round_weights

        return round_weights
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
