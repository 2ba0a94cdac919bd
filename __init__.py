"""skipdec: OPT compiled layer by layer, decoded with only the layers that each token needs.

The public names load lazily, so that ``import skipdec`` costs nothing until one is used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .engines.backends.ort import use_shared_thread_pool
    from .engines.bundle import EngineBundle
    from .engines.errors import SkipDecError
    from .runtime.generator import Generator
    from .runtime.schedule import ExitSchedule
    from .runtime.tokens.outputs import CompletionOutput, RequestOutput
    from .runtime.tokens.sampling import SamplingParams

_PUBLIC_NAMES = {
    "CompletionOutput": ".runtime.tokens.outputs",
    "EngineBundle": ".engines.bundle",
    "ExitSchedule": ".runtime.schedule",
    "Generator": ".runtime.generator",
    "RequestOutput": ".runtime.tokens.outputs",
    "SamplingParams": ".runtime.tokens.sampling",
    "SkipDecError": ".engines.errors",
    "use_shared_thread_pool": ".engines.backends.ort",
}

__all__ = [
    "CompletionOutput",
    "EngineBundle",
    "ExitSchedule",
    "Generator",
    "RequestOutput",
    "SamplingParams",
    "SkipDecError",
    "use_shared_thread_pool",
]


def __getattr__(name: str) -> Any:  # noqa: ANN401  (the module protocol's own signature)
    if name in _PUBLIC_NAMES:
        return getattr(importlib.import_module(_PUBLIC_NAMES[name], __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
