"""What skipping costs and gains: texts, metrics, times."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .evaluation import evaluate

__all__ = ["evaluate"]


def __getattr__(name: str) -> Any:  # noqa: ANN401  (the module protocol's own signature)
    if name == "evaluate":
        from .evaluation import evaluate

        return evaluate
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
