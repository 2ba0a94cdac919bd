"""Measure every GPU backend that loads, beside a compiled Hugging Face model.

Each step runs in its own process, so that a crash, a hang or lack of memory becomes one row of the
report with its message, and the other steps still run.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.gpu.report import (
    BASELINE,
    Baseline,
    Cell,
    DeviceFacts,
    GpuReport,
    RunningBatch,
    Unmeasured,
)
from benchmarks.process import skipdec_command
from skipdec.engines.bundle import EngineBundle
from skipdec.engines.errors import SkipDecError

BACKENDS = ("onnxruntime", "tensorrt-rtx", "tensorrt")  # most likely to load first
Result = TypeVar("Result")
_PACKAGES = ("skipdec", "onnxruntime-gpu", "onnxruntime", "tensorrt", "tensorrt_rtx_cu13", "torch")
_SHOWN = 600  # last characters shown of a failed step's message
_FOLDER = Path(__file__).parent


@dataclass(frozen=True, kw_only=True)
class GpuCheckConfig:
    """Options of a GPU check; ``work`` keeps bundles and finished figures between runs."""

    work: Path
    model: str = "opt-1.3b"
    device: str = "cuda"
    torch_device: str = "cuda"
    bundle: Path | None = None  # float16 with canonical graphs; None: random weights
    gpu_arch: str | None = None  # for TensorRT's plans; None: this machine's GPU
    batch_sizes: tuple[int, ...] = (1, 8, 64)
    schedules: tuple[str, ...] = ("full", "2x", "5x")
    prompt_length: int = 128
    num_tokens: int = 64
    repetitions: int = 5
    probe_bytes: int = 2**30
    seconds: float = 1500.0  # for everything; steps that are left out say so

    @property
    def is_rehearsal(self) -> bool:
        """True if this only proves that the script works."""
        return self.device == "rehearsal"

    @property
    def positions(self) -> int:
        """KV capacity that a row needs."""
        return self.prompt_length + self.num_tokens


class GpuCheck:
    """Runs the steps; calls ``on_report`` with the report so far after each."""

    def __init__(self, config: GpuCheckConfig, on_report: Callable[[GpuReport], None]) -> None:
        self._config = config
        self._on_report = on_report
        self._deadline = time.monotonic() + config.seconds
        self._report = GpuReport(
            title=f"{config.model} float16 on a GPU",
            conditions=_conditions(config),
            versions=_versions(),
            rehearsal=config.is_rehearsal,
        )

    def run(self, tests: str | None = None) -> GpuReport:
        """Measure everything that time allows; ``tests`` is pytest's last line."""
        self._config.work.mkdir(parents=True, exist_ok=True)
        self._update(tests=tests)
        self._try("the device", None, self._measure_device)
        exported = self._try("export", None, self._export)
        for target in BACKENDS if exported else ():
            self._try(target, None, partial(self._measure_backend, target))
            if target == BACKENDS[0]:  # riskier steps come after the most important ones
                self._measure_baselines()
        return self._report

    def _measure_device(self) -> None:
        arguments = (self._config.device, self._config.probe_bytes)
        facts = json.loads(self._call(_python("device_facts.py", *arguments)))
        device = DeviceFacts(**facts)
        self._update(device=device, title=f"{self._config.model} float16 on {device.name}")

    def _export(self) -> Path:
        """Return the bundle from which all backends start."""
        if self._config.bundle is not None:
            return self._config.bundle
        bundle = self._config.work / f"{self._config.model}-onnxruntime"
        if not bundle.exists():
            command = [
                *("export", self._config.model, "-o", str(bundle)),
                *("--fp16", "--load-format=dummy", "--keep-canonical", "--no-verify"),
                "--kernels=onnxruntime",  # the only ones that GPUs support
                f"--max-seq-len={self._config.positions}",
            ]
            self._call(skipdec_command(*command))
        return bundle

    def _measure_backend(self, target: str) -> None:
        bundle = self._build(target)
        for batch_size in self._config.batch_sizes:
            self._try(target, batch_size, partial(self._bench, target, bundle, batch_size))
        most = max(self._config.batch_sizes)
        self._try(
            f"{target}, running batch", most, partial(self._measure_running_batch, target, bundle)
        )

    def _build(self, target: str) -> Path:
        """Return the bundle of ``target``: the export, or TensorRT's plans compiled from it."""
        config, exported = self._config, self._export()
        bundle = config.work / f"{config.model}-{target}"
        if target == "onnxruntime":
            return exported
        if not bundle.exists():
            longest = EngineBundle.open(exported).manifest.model.max_seq_len
            buckets = sorted({min(config.positions, longest), longest})
            command = [
                "build",
                str(exported),
                f"--target={target}",
                *("-o", str(bundle)),
                f"--max-batch-size={max(config.batch_sizes)}",
                f"--max-prompt-len={config.prompt_length}",
                f"--kv-buckets={','.join(map(str, buckets))}",
                *(
                    [f"--timing-cache={config.work / target}.timing"]
                    if target == "tensorrt"
                    else []
                ),
                *([f"--gpu-arch={config.gpu_arch}"] if config.gpu_arch else []),
            ]
            self._call(skipdec_command(*command))
        return bundle

    def _bench(self, target: str, bundle: Path, batch_size: int) -> None:
        config = self._config
        command = skipdec_command(
            "bench",
            str(bundle),
            f"--batch-sizes={batch_size}",
            *(f"--schedule={schedule}" for schedule in config.schedules),
            f"--prompt-len={config.prompt_length}",
            f"--gen-len={config.num_tokens}",
            f"--repetitions={config.repetitions}",
            f"--device={config.device}",
            "--json",
        )
        document = self._remembered(f"{target}-{batch_size}", command)
        cells = tuple(_cell(target, entry) for entry in document["measurements"])
        self._update(cells=(*self._report.cells, *cells))

    def _measure_running_batch(self, target: str, bundle: Path) -> None:
        """Measure requests at all schedules in one batch, and the same in static batches."""
        config = self._config
        sizes = (max(config.batch_sizes), config.prompt_length, config.num_tokens)
        command = _python("running_batch.py", bundle, config.device, *sizes, *config.schedules)
        figures = self._remembered(f"{target}-running", command)
        entry = RunningBatch(backend=target, **figures)
        self._update(running_batches=(*self._report.running_batches, entry))

    def _measure_baselines(self) -> None:
        if missing := _missing_module():
            self._skip(BASELINE, None, f"{missing} is not installed")
            return
        for batch_size in self._config.batch_sizes:
            self._try(BASELINE, batch_size, partial(self._measure_baseline, batch_size))

    def _measure_baseline(self, batch_size: int) -> None:
        config = self._config
        sizes = (batch_size, config.prompt_length, config.num_tokens, config.repetitions)
        arguments = (config.model, "float16", config.torch_device, *sizes)
        command = _python("compiled_baseline.py", *arguments)
        document = self._remembered(f"baseline-{batch_size}", command)
        baseline = Baseline(
            batch_size=batch_size,
            num_layers=document["num_layers"],
            step_milliseconds=tuple(document["step_milliseconds"]),
            uses_cuda_graphs=document["uses_cuda_graphs"],
        )
        self._update(baselines=(*self._report.baselines, baseline))

    def _remembered(self, name: str, command: Sequence[str]) -> dict[str, Any]:
        """Return the JSON that ``command`` prints, or printed in an earlier run with the same
        ``work``.
        """
        path = self._config.work / f"{name}.json"
        if not path.exists():
            output = self._call(command)
            json.loads(output)
            path.write_text(output, encoding="utf-8")
        document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return document

    def _try(self, what: str, batch_size: int | None, step: Callable[[], Result]) -> Result | None:
        """Run a step; its failure becomes a row."""
        try:
            return step()
        except SkipDecError as error:
            self._skip(what, batch_size, "; ".join(error.problems))
            return None

    def _skip(self, what: str, batch_size: int | None, reason: str) -> None:
        entry = Unmeasured(what, batch_size, reason)
        self._update(unmeasured=(*self._report.unmeasured, entry))

    def _update(self, **changes: Any) -> None:  # noqa: ANN401  (fields of the report)
        self._report = replace(self._report, **changes)
        self._on_report(self._report)

    def _call(self, command: Sequence[str]) -> str:
        """Run a step in its own process group; return its stdout.

        Raises SkipDecError with the end of its stderr if it fails, and when time is up.
        """
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise SkipDecError("time", f"the limit of {self._config.seconds:.0f} s was reached")
        with subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        ) as process:
            try:
                stdout, stderr = process.communicate(timeout=left)
            except subprocess.TimeoutExpired:
                raise SkipDecError(
                    "time", f"the limit of {self._config.seconds:.0f} s was reached"
                ) from None
            finally:
                _end_group(process)
        if process.returncode != 0:
            raise SkipDecError(
                " ".join(command), f"ended with {process.returncode}: {stderr.strip()[-_SHOWN:]}"
            )
        return stdout


def _python(name: str, *arguments: object) -> list[str]:
    """Return the command that runs a file of this folder."""
    return [sys.executable, str(_FOLDER / name), *map(str, arguments)]


def _end_group(process: subprocess.Popen[str]) -> None:
    """Kill the rest of a step: a builder's children outlive it when it is killed."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _cell(target: str, entry: dict[str, Any]) -> Cell:
    return Cell(
        backend=target,
        batch_size=entry["batch_size"],
        schedule=entry["name"],
        realised_depth=entry["realised_depth"],
        step_milliseconds_p50=entry["step_milliseconds_p50"],
        step_milliseconds_p95=entry["step_milliseconds_p95"],
        tokens_per_second=entry["tokens_per_second"],
        decode_speedup=entry["decode_speedup"],
        bytes_per_step=entry["bytes_per_step"],
    )


def _conditions(config: GpuCheckConfig) -> str:
    weights = "random weights of the real size" if config.bundle is None else config.bundle.name
    return (
        f"{config.model}, float16, {weights}; prompts of {config.prompt_length} tokens, "
        f"{config.num_tokens} generated greedily per row; medians of {config.repetitions}."
    )


def _versions() -> str:
    return f"{', '.join(_installed())}."


def _installed() -> Iterator[str]:
    for name in _PACKAGES:
        try:
            yield f"{name} {version(name)}"
        except PackageNotFoundError:
            continue


def _missing_module() -> str | None:
    """Return a missing module that the compiled model needs."""
    return next((name for name in ("torch", "transformers") if find_spec(name) is None), None)
