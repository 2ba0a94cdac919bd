"""skipdec: language models compiled layer by layer, run with only the layers each token needs.

Public names load lazily, so that ``import skipdec`` imports nothing until one is used.
"""

from __future__ import annotations

import importlib
import os
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
    from .calib.fitting.inputs import FitConfig as FitConfig
    from .calib.fitting.search import SearchConfig as SearchConfig
    from .calib.fitting.space import SpaceConfig as SpaceConfig
    from .calib.ngrams.config import NGramsConfig as NGramsConfig
    from .calib.ngrams.ngrams import write_ngrams as write_ngrams
    from .calib.rounding.config import RoundingConfig as RoundingConfig
    from .calib.rounding.rounding import round_weights as round_weights
    from .calib.tuning.config import TuneConfig as TuneConfig
    from .calib.tuning.tuning import tune as tune
    from .engines.backends.ort import use_shared_thread_pool as use_shared_thread_pool
    from .engines.bundle import EngineBundle as EngineBundle
    from .engines.errors import BundleError as BundleError
    from .engines.errors import CapacityError as CapacityError
    from .engines.errors import CheckpointError as CheckpointError
    from .engines.errors import ClosedError as ClosedError
    from .engines.errors import ConfigurationError as ConfigurationError
    from .engines.errors import DeviceError as DeviceError
    from .engines.errors import EngineBuildError as EngineBuildError
    from .engines.errors import EnvironmentMismatchError as EnvironmentMismatchError
    from .engines.errors import LogitsError as LogitsError
    from .engines.errors import MissingExtraError as MissingExtraError
    from .engines.errors import NotFiniteError as NotFiniteError
    from .engines.errors import OverloadedError as OverloadedError
    from .engines.errors import ScheduleError as ScheduleError
    from .engines.errors import SkipDecError as SkipDecError
    from .engines.errors import UnsupportedModelError as UnsupportedModelError
    from .engines.errors import UsageError as UsageError
    from .engines.errors import VerificationError as VerificationError
    from .engines.errors import WorkerDiedError as WorkerDiedError
    from .engines.host.events import Events as Events
    from .engines.host.progress import ConsoleProgress as ConsoleProgress
    from .exporter.comparison.comparison import compare as compare
    from .exporter.comparison.config import CompareConfig as CompareConfig
    from .exporter.config import BuildConfig as BuildConfig
    from .exporter.config import CheckpointSource as CheckpointSource
    from .exporter.config import ExportConfig as ExportConfig
    from .exporter.pipeline.build import build_bundle as build_bundle
    from .exporter.pipeline.exporting import export as export
    from .exporter.tensorrt_config import TensorRtConfig as TensorRtConfig
    from .exporter.verification.process import verify_bundle as verify_bundle
    from .runtime.generator import Generator as Generator
    from .runtime.libskipdec.paths import NativePaths as NativePaths
    from .runtime.libskipdec.paths import native_paths as native_paths
    from .runtime.measuring.bench import BenchReport as BenchReport
    from .runtime.measuring.bench import run_benchmark as run_benchmark
    from .runtime.measuring.config import BenchConfig as BenchConfig
    from .runtime.measuring.config import Workload as Workload
    from .runtime.measuring.doctor import examine_machine as examine_machine
    from .runtime.measuring.inspection import inspect_bundle as inspect_bundle
    from .runtime.opening import OpenOptions as OpenOptions
    from .runtime.schedule import ExitSchedule as ExitSchedule
    from .runtime.schedule.bundle import write_schedule as write_schedule
    from .runtime.schedule.plot import plot_schedule as plot_schedule
    from .runtime.schedule.text import format_schedule as format_schedule
    from .runtime.schedule.text import parse_schedule as parse_schedule
    from .runtime.scheduling.running_batch import RunningBatch as RunningBatch
    from .runtime.scheduling.stats import EngineStats as EngineStats
    from .runtime.serving.async_engine import AsyncEngine as AsyncEngine
    from .runtime.serving.process.engine import ProcessEngine as ProcessEngine
    from .runtime.serving.process.settings import RestartPolicy as RestartPolicy
    from .runtime.serving.stream import RequestStream as RequestStream
    from .runtime.serving.triton.check import check_triton_models as check_triton_models
    from .runtime.serving.triton.repository import (
        write_triton_repository as write_triton_repository,
    )
    from .runtime.serving.triton.settings import TritonRepositoryConfig as TritonRepositoryConfig
    from .runtime.tokens.outputs import CompletionOutput as CompletionOutput
    from .runtime.tokens.outputs import RequestOutput as RequestOutput
    from .runtime.tokens.outputs import ScoreOutput as ScoreOutput
    from .runtime.tokens.outputs import StreamDelta as StreamDelta
    from .runtime.tokens.sampling import SamplingParams as SamplingParams

    __version__: str

# ONNX Runtime would collect facts about process and machine for Microsoft, from its import on.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")


def _by_name(names: dict[str, str]) -> dict[str, str]:
    """Return the module of each name."""
    return {name: module for module, listed in names.items() for name in listed.split()}


_RUNNING = _by_name(
    # everything that a service needs, without torch and onnx
    {
        ".engines.backends.ort": "use_shared_thread_pool",
        ".engines.bundle": "EngineBundle",
        ".engines.errors": (
            "BundleError CapacityError CheckpointError ClosedError ConfigurationError "
            "DeviceError EngineBuildError EnvironmentMismatchError LogitsError "
            "MissingExtraError NotFiniteError OverloadedError ScheduleError SkipDecError "
            "UnsupportedModelError UsageError VerificationError WorkerDiedError"
        ),
        ".engines.host.events": "Events",
        ".engines.host.progress": "ConsoleProgress",
        ".runtime.generator": "Generator",
        ".runtime.libskipdec.paths": "NativePaths native_paths",
        ".runtime.measuring.bench": "BenchReport run_benchmark",
        ".runtime.measuring.config": "BenchConfig Workload",
        ".runtime.measuring.doctor": "examine_machine",
        ".runtime.measuring.inspection": "inspect_bundle",
        ".runtime.opening": "OpenOptions",
        ".runtime.schedule": "ExitSchedule",
        ".runtime.schedule.bundle": "write_schedule",
        ".runtime.schedule.plot": "plot_schedule",
        ".runtime.schedule.text": "format_schedule parse_schedule",
        ".runtime.scheduling.running_batch": "RunningBatch",
        ".runtime.scheduling.stats": "EngineStats",
        ".runtime.serving.async_engine": "AsyncEngine",
        ".runtime.serving.process.engine": "ProcessEngine",
        ".runtime.serving.process.settings": "RestartPolicy",
        ".runtime.serving.stream": "RequestStream",
        ".runtime.serving.triton.check": "check_triton_models",
        ".runtime.serving.triton.repository": "write_triton_repository",
        ".runtime.serving.triton.settings": "TritonRepositoryConfig",
        ".runtime.tokens.outputs": "CompletionOutput RequestOutput ScoreOutput StreamDelta",
        ".runtime.tokens.sampling": "SamplingParams",
    }
)
_MAKING = _by_name(
    {
        ".calib.calibration.calibration": "calibrate",
        ".calib.calibration.config": "CalibrationConfig",
        ".calib.data.data": "DataConfig",
        ".calib.evaluation.config": "BundleChoice EvaluationConfig MetricOptions",
        ".calib.evaluation.evaluation": "Evaluation evaluate",
        ".calib.fitting.fitting": "Fit fit",
        ".calib.fitting.inputs": "FitConfig",
        ".calib.fitting.search": "SearchConfig",
        ".calib.fitting.space": "SpaceConfig",
        ".calib.ngrams.config": "NGramsConfig",
        ".calib.ngrams.ngrams": "write_ngrams",
        ".calib.rounding.config": "RoundingConfig",
        ".calib.rounding.rounding": "round_weights",
        ".calib.tuning.config": "TuneConfig",
        ".calib.tuning.tuning": "tune",
        ".exporter.comparison.comparison": "compare",
        ".exporter.comparison.config": "CompareConfig",
        ".exporter.config": "BuildConfig CheckpointSource ExportConfig",
        ".exporter.pipeline.build": "build_bundle",
        ".exporter.pipeline.exporting": "export",
        ".exporter.tensorrt_config": "TensorRtConfig",
        ".exporter.verification.process": "verify_bundle",
    }
)
_PUBLIC_NAMES = _RUNNING | _MAKING

__all__ = [*_RUNNING]  # a star import omits the others, which would load torch


def __getattr__(name: str) -> Any:  # noqa: ANN401  (the module protocol's own signature)
    if name == "__version__":
        return importlib.import_module(".engines.host.installation", __name__).own_version()
    if name in _PUBLIC_NAMES:
        return getattr(importlib.import_module(_PUBLIC_NAMES[name], __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*_PUBLIC_NAMES, "__version__"])
