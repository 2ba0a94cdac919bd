"""skipdec: OPT compiled layer by layer, decoded with only the layers that each token needs.

The public names load lazily, so that ``import skipdec`` costs nothing until one is used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .calib.calibration.calibration import calibrate as calibrate
    from .calib.calibration.config import CalibrationConfig as CalibrationConfig
    from .calib.data.data import DataConfig as DataConfig
    from .calib.evaluation.evaluation import evaluate as evaluate
    from .calib.evaluation.inputs import BundleChoice as BundleChoice
    from .calib.evaluation.inputs import EvaluationConfig as EvaluationConfig
    from .calib.fitting.fitting import fit as fit
    from .calib.fitting.goal import MaxLoss as MaxLoss
    from .calib.fitting.goal import TargetSpeedup as TargetSpeedup
    from .calib.fitting.inputs import FitConfig as FitConfig
    from .calib.fitting.source import BundleSource as BundleSource
    from .calib.fitting.source import ModelSource as ModelSource
    from .calib.rounding.config import RoundingConfig as RoundingConfig
    from .calib.rounding.rounding import round_weights as round_weights
    from .calib.tuning.config import TuneConfig as TuneConfig
    from .calib.tuning.tuning import tune as tune
    from .engines.backends.ort import use_shared_thread_pool
    from .engines.bundle import EngineBundle, write_schedule
    from .engines.errors import SkipDecError, UsageError
    from .engines.host.events import Events
    from .engines.host.progress import ConsoleProgress
    from .exporter.comparison.comparison import compare as compare
    from .exporter.comparison.config import CompareConfig as CompareConfig
    from .exporter.config import BuildConfig as BuildConfig
    from .exporter.config import ExportConfig as ExportConfig
    from .exporter.pipeline.build import build_bundle as build_bundle
    from .exporter.pipeline.exporting import export as export
    from .runtime.generator import Generator
    from .runtime.schedule import ExitSchedule
    from .runtime.tokens.outputs import CompletionOutput, RequestOutput
    from .runtime.tokens.sampling import SamplingParams

_RUNNING = {  # what a service needs: no torch, no onnx
    "CompletionOutput": ".runtime.tokens.outputs",
    "ConsoleProgress": ".engines.host.progress",
    "EngineBundle": ".engines.bundle",
    "Events": ".engines.host.events",
    "ExitSchedule": ".runtime.schedule",
    "Generator": ".runtime.generator",
    "RequestOutput": ".runtime.tokens.outputs",
    "SamplingParams": ".runtime.tokens.sampling",
    "SkipDecError": ".engines.errors",
    "UsageError": ".engines.errors",
    "use_shared_thread_pool": ".engines.backends.ort",
    "write_schedule": ".engines.bundle",
}
_MAKING = {
    "BuildConfig": ".exporter.config",
    "BundleChoice": ".calib.evaluation.inputs",
    "BundleSource": ".calib.fitting.source",
    "CalibrationConfig": ".calib.calibration.config",
    "CompareConfig": ".exporter.comparison.config",
    "DataConfig": ".calib.data.data",
    "EvaluationConfig": ".calib.evaluation.inputs",
    "ExportConfig": ".exporter.config",
    "FitConfig": ".calib.fitting.inputs",
    "MaxLoss": ".calib.fitting.goal",
    "ModelSource": ".calib.fitting.source",
    "RoundingConfig": ".calib.rounding.config",
    "TargetSpeedup": ".calib.fitting.goal",
    "TuneConfig": ".calib.tuning.config",
    "build_bundle": ".exporter.pipeline.build",
    "calibrate": ".calib.calibration.calibration",
    "compare": ".exporter.comparison.comparison",
    "evaluate": ".calib.evaluation.evaluation",
    "export": ".exporter.pipeline.exporting",
    "fit": ".calib.fitting.fitting",
    "round_weights": ".calib.rounding.rounding",
    "tune": ".calib.tuning.tuning",
}
_PUBLIC_NAMES = _RUNNING | _MAKING

__all__ = [  # a star takes _RUNNING alone: the others would load torch
    "CompletionOutput",
    "ConsoleProgress",
    "EngineBundle",
    "Events",
    "ExitSchedule",
    "Generator",
    "RequestOutput",
    "SamplingParams",
    "SkipDecError",
    "UsageError",
    "use_shared_thread_pool",
    "write_schedule",
]


def __getattr__(name: str) -> Any:  # noqa: ANN401  (the module protocol's own signature)
    if name in _PUBLIC_NAMES:
        return getattr(importlib.import_module(_PUBLIC_NAMES[name], __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(_PUBLIC_NAMES)
