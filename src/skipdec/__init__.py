"""skipdec: OPT compiled layer by layer, decoded with only the layers that each token needs.

Public names load lazily, so that ``import skipdec`` imports nothing until one is used.
"""

from __future__ import annotations

import importlib
import warnings
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .calib.calibration.calibration import calibrate as calibrate
    from .calib.calibration.config import CalibrationConfig as CalibrationConfig
    from .calib.data.data import DataConfig as DataConfig
    from .calib.evaluation.config import BundleChoice as BundleChoice
    from .calib.evaluation.config import EvaluationConfig as EvaluationConfig
    from .calib.evaluation.config import MetricOptions as MetricOptions
    from .calib.evaluation.evaluation import Evaluation as Evaluation
    from .calib.evaluation.evaluation import evaluate as evaluate
    from .calib.fitting.fitting import Fit as Fit
    from .calib.fitting.fitting import fit as fit
    from .calib.fitting.goal import MaxLoss as MaxLoss
    from .calib.fitting.goal import TargetSpeedup as TargetSpeedup
    from .calib.fitting.inputs import FitConfig as FitConfig
    from .calib.fitting.search import SearchConfig as SearchConfig
    from .calib.fitting.source import BundleSource as BundleSource
    from .calib.fitting.source import ModelSource as ModelSource
    from .calib.fitting.space import SpaceConfig as SpaceConfig
    from .calib.rounding.config import RoundingConfig as RoundingConfig
    from .calib.rounding.rounding import round_weights as round_weights
    from .calib.tuning.config import TuneConfig as TuneConfig
    from .calib.tuning.tuning import tune as tune
    from .engines.backends.ort import use_shared_thread_pool
    from .engines.bundle import EngineBundle
    from .engines.errors import (
        BundleError,
        CapacityError,
        CheckpointError,
        ClosedError,
        ConfigurationError,
        DeviceError,
        EngineBuildError,
        EnvironmentMismatchError,
        LogitsError,
        MissingExtraError,
        OverloadedError,
        ScheduleError,
        SkipDecError,
        UnsupportedModelError,
        UsageError,
        VerificationError,
        WorkerDiedError,
    )
    from .engines.host.events import Events
    from .engines.host.progress import ConsoleProgress
    from .exporter.comparison.comparison import compare as compare
    from .exporter.comparison.config import CompareConfig as CompareConfig
    from .exporter.config import BuildConfig as BuildConfig
    from .exporter.config import CheckpointSource as CheckpointSource
    from .exporter.config import ExportConfig as ExportConfig
    from .exporter.pipeline.build import build_bundle as build_bundle
    from .exporter.pipeline.exporting import export as export
    from .exporter.tensorrt import TensorRtConfig as TensorRtConfig
    from .exporter.verification.process import verify_bundle as verify_bundle
    from .runtime.generator import Generator
    from .runtime.libskipdec.paths import NativePaths, native_paths
    from .runtime.measuring.bench import BenchReport, run_benchmark
    from .runtime.measuring.config import BenchConfig
    from .runtime.measuring.doctor import examine_machine
    from .runtime.measuring.inspection import Workload, inspect_bundle
    from .runtime.opening import OpenOptions as OpenOptions
    from .runtime.schedule import ExitSchedule
    from .runtime.schedule.bundle import upgrade_bundle, write_schedule
    from .runtime.schedule.decays import Decay, FallingDecay
    from .runtime.schedule.fields import ScheduleFields
    from .runtime.schedule.placements import Placement
    from .runtime.schedule.plot import plot_schedule
    from .runtime.schedule.text import format_schedule, parse_schedule
    from .runtime.scheduling.running_batch import RunningBatch
    from .runtime.scheduling.stats import EngineStats
    from .runtime.serving.async_engine import AsyncEngine
    from .runtime.serving.process.engine import ProcessEngine
    from .runtime.serving.process.settings import RestartPolicy
    from .runtime.serving.stream import RequestStream
    from .runtime.serving.triton.check import check_triton_models
    from .runtime.serving.triton.repository import write_triton_repository
    from .runtime.serving.triton.settings import TritonRepositoryConfig
    from .runtime.tokens.outputs import CompletionOutput, RequestOutput, ScoreOutput, StreamDelta
    from .runtime.tokens.sampling import SamplingParams

    Engine = RunningBatch  # renamed, see _RENAMED
    __version__: str

_RUNNING = {  # everything a service needs; no torch, no onnx
    "AsyncEngine": ".runtime.serving.async_engine",
    "BenchConfig": ".runtime.measuring.config",
    "BenchReport": ".runtime.measuring.bench",
    "BundleError": ".engines.errors",
    "CapacityError": ".engines.errors",
    "CheckpointError": ".engines.errors",
    "ClosedError": ".engines.errors",
    "CompletionOutput": ".runtime.tokens.outputs",
    "ConfigurationError": ".engines.errors",
    "ConsoleProgress": ".engines.host.progress",
    "Decay": ".runtime.schedule.decays",
    "FallingDecay": ".runtime.schedule.decays",
    "DeviceError": ".engines.errors",
    "EngineBuildError": ".engines.errors",
    "EngineBundle": ".engines.bundle",
    "EngineStats": ".runtime.scheduling.stats",
    "EnvironmentMismatchError": ".engines.errors",
    "Events": ".engines.host.events",
    "ExitSchedule": ".runtime.schedule",
    "Generator": ".runtime.generator",
    "LogitsError": ".engines.errors",
    "MissingExtraError": ".engines.errors",
    "NativePaths": ".runtime.libskipdec.paths",
    "OpenOptions": ".runtime.opening",
    "OverloadedError": ".engines.errors",
    "Placement": ".runtime.schedule.placements",
    "ProcessEngine": ".runtime.serving.process.engine",
    "RequestOutput": ".runtime.tokens.outputs",
    "RequestStream": ".runtime.serving.stream",
    "RestartPolicy": ".runtime.serving.process.settings",
    "RunningBatch": ".runtime.scheduling.running_batch",
    "SamplingParams": ".runtime.tokens.sampling",
    "ScheduleError": ".engines.errors",
    "ScheduleFields": ".runtime.schedule.fields",
    "ScoreOutput": ".runtime.tokens.outputs",
    "SkipDecError": ".engines.errors",
    "StreamDelta": ".runtime.tokens.outputs",
    "TritonRepositoryConfig": ".runtime.serving.triton.settings",
    "UnsupportedModelError": ".engines.errors",
    "UsageError": ".engines.errors",
    "VerificationError": ".engines.errors",
    "WorkerDiedError": ".engines.errors",
    "Workload": ".runtime.measuring.inspection",
    "check_triton_models": ".runtime.serving.triton.check",
    "examine_machine": ".runtime.measuring.doctor",
    "format_schedule": ".runtime.schedule.text",
    "inspect_bundle": ".runtime.measuring.inspection",
    "native_paths": ".runtime.libskipdec.paths",
    "parse_schedule": ".runtime.schedule.text",
    "plot_schedule": ".runtime.schedule.plot",
    "run_benchmark": ".runtime.measuring.bench",
    "upgrade_bundle": ".runtime.schedule.bundle",
    "use_shared_thread_pool": ".engines.backends.ort",
    "write_schedule": ".runtime.schedule.bundle",
    "write_triton_repository": ".runtime.serving.triton.repository",
}
_MAKING = {
    "BuildConfig": ".exporter.config",
    "BundleChoice": ".calib.evaluation.config",
    "BundleSource": ".calib.fitting.source",
    "CalibrationConfig": ".calib.calibration.config",
    "CheckpointSource": ".exporter.config",
    "CompareConfig": ".exporter.comparison.config",
    "DataConfig": ".calib.data.data",
    "Evaluation": ".calib.evaluation.evaluation",
    "EvaluationConfig": ".calib.evaluation.config",
    "ExportConfig": ".exporter.config",
    "Fit": ".calib.fitting.fitting",
    "FitConfig": ".calib.fitting.inputs",
    "MaxLoss": ".calib.fitting.goal",
    "MetricOptions": ".calib.evaluation.config",
    "ModelSource": ".calib.fitting.source",
    "RoundingConfig": ".calib.rounding.config",
    "SearchConfig": ".calib.fitting.search",
    "SpaceConfig": ".calib.fitting.space",
    "TargetSpeedup": ".calib.fitting.goal",
    "TensorRtConfig": ".exporter.tensorrt",
    "TuneConfig": ".calib.tuning.config",
    "build_bundle": ".exporter.pipeline.build",
    "calibrate": ".calib.calibration.calibration",
    "compare": ".exporter.comparison.comparison",
    "evaluate": ".calib.evaluation.evaluation",
    "export": ".exporter.pipeline.exporting",
    "fit": ".calib.fitting.fitting",
    "round_weights": ".calib.rounding.rounding",
    "tune": ".calib.tuning.tuning",
    "verify_bundle": ".exporter.verification.process",
}
_PUBLIC_NAMES = _RUNNING | _MAKING
_RENAMED = {"Engine": "RunningBatch"}  # old names, which the next release removes

__all__ = [  # a star import takes only _RUNNING, as the others would load torch
    "AsyncEngine",
    "BenchConfig",
    "BenchReport",
    "BundleError",
    "CapacityError",
    "CheckpointError",
    "ClosedError",
    "CompletionOutput",
    "ConfigurationError",
    "ConsoleProgress",
    "Decay",
    "DeviceError",
    "EngineBuildError",
    "EngineBundle",
    "EngineStats",
    "EnvironmentMismatchError",
    "Events",
    "ExitSchedule",
    "FallingDecay",
    "Generator",
    "LogitsError",
    "MissingExtraError",
    "NativePaths",
    "OpenOptions",
    "OverloadedError",
    "Placement",
    "ProcessEngine",
    "RequestOutput",
    "RequestStream",
    "RestartPolicy",
    "RunningBatch",
    "SamplingParams",
    "ScheduleError",
    "ScheduleFields",
    "ScoreOutput",
    "SkipDecError",
    "StreamDelta",
    "TritonRepositoryConfig",
    "UnsupportedModelError",
    "UsageError",
    "VerificationError",
    "WorkerDiedError",
    "Workload",
    "check_triton_models",
    "examine_machine",
    "format_schedule",
    "inspect_bundle",
    "native_paths",
    "parse_schedule",
    "plot_schedule",
    "run_benchmark",
    "upgrade_bundle",
    "use_shared_thread_pool",
    "write_schedule",
    "write_triton_repository",
]


def __getattr__(name: str) -> Any:  # noqa: ANN401  (the module protocol's own signature)
    if name == "__version__":
        return importlib.import_module(".engines.host.installation", __name__).own_version()
    if name in _RENAMED:
        new = _RENAMED[name]
        text = f"skipdec.{name} is now skipdec.{new}; the old name goes with the next release"
        warnings.warn(text, DeprecationWarning, stacklevel=2)
        name = new
    if name in _PUBLIC_NAMES:
        return getattr(importlib.import_module(_PUBLIC_NAMES[name], __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*_PUBLIC_NAMES, "__version__"])
