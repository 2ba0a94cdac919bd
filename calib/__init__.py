"""Prepare a model for layer skipping.

Module paths that docs/guides/python.md gave before calib had folders still work, for example
``from skipdec.calib.fit_goal import TargetSpeedup``. New programs import from ``skipdec``.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import Any

_MOVED = {  # former module names and where their content is now
    "calibration_plan": "calibration.config",
    "evaluation_inputs": "evaluation.config",
    "fit": "fitting.fitting",
    "fit_goal": "fitting.inputs",
    "fit_inputs": "fitting.inputs",
    "fit_source": "fitting.source",
    "rounding_plan": "rounding.config",
    "tune": "tuning.tuning",
    "tune_config": "tuning.config",
}


class _MovedModule(ModuleType):
    """Forward names to the module that replaced this one, which is imported on first use."""

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  (the module protocol's own signature)
        if name.startswith("__"):
            raise AttributeError(name)
        former = self.__name__.rpartition(".")[2]
        return getattr(import_module(f".{_MOVED[former]}", __package__), name)


for _former in _MOVED:
    globals()[_former] = _MovedModule(f"{__name__}.{_former}")
    sys.modules[f"{__name__}.{_former}"] = globals()[_former]
