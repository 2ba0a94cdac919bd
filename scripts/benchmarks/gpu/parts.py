"""The parts of the GPU check, most valuable first, with their commands and durations.

A part is a program that exits with 0 if all is well and prints a JSON object or a message.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.process import skipdec_command

_FOLDER = Path(__file__).parent
_SCHEDULES = ("full", "2x", "5x")


@dataclass(frozen=True, kw_only=True)
class CheckConfig:
    """Options of the check; ``work`` keeps bundles, which a new machine does not have."""

    work: Path
    model: str = "opt-1.3b"
    device: str = "cuda"
    torch_device: str = "cuda"
    batch_sizes: str = "1,8,64"
    prompt_length: int = 128
    num_tokens: int = 64
    repetitions: int = 5

    @property
    def bundle(self) -> Path:
        """The bundle whose speed is measured: float16, random weights."""
        return self.work / f"{self.model}-{self.device}"

    @property
    def sizes(self) -> tuple[str, ...]:
        """The lengths of prompts and texts, as arguments."""
        return str(self.prompt_length), str(self.num_tokens)


@dataclass(frozen=True, kw_only=True)
class Part:
    """One part; ``seconds`` are expected on an H100, and four times that counts as a hang."""

    name: str
    proves: str
    seconds: float
    command: Callable[[CheckConfig], list[str]]


def _program(name: str, *arguments: str) -> list[str]:
    return [sys.executable, str(_FOLDER / name), *arguments]


def _tests(config: CheckConfig) -> list[str]:
    """Return the command of the tests on CUDA; a rehearsal runs those on host memory instead."""
    chosen = ["-m", "not gpu and not slow"]
    if config.device == "cuda":
        chosen = ["-m", "gpu", "-n", "8", "--dist", "worksteal"]
    return [
        *(sys.executable, "-P", "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", *chosen),
        *("-k", "not tensorrt", "tests/engines/backends", "tests/runtime/devices"),
        *("tests/runtime/stitching/test_device_drafts.py", "tests/calib/tuning/test_cuda.py"),
    ]


def _export(config: CheckConfig) -> list[str]:
    return skipdec_command(
        *(
            "export",
            config.model,
            "-o",
            str(config.bundle),
            "--dtype=float16",
            "--force",
            "--quiet",
        ),
        *("--load-format=dummy", "--no-verify"),
        "--kernels=onnxruntime",  # the only kernels for GPUs
        f"--max-seq-len={config.prompt_length + config.num_tokens}",
    )


def _speed(config: CheckConfig) -> list[str]:
    return skipdec_command(
        *("bench", str(config.bundle), f"--device={config.device}", "--json"),
        f"--batch-sizes={config.batch_sizes}",
        *(f"--schedule={schedule}" for schedule in _SCHEDULES),
        f"--prompt-len={config.prompt_length}",
        f"--gen-len={config.num_tokens}",
        f"--seconds={4 * config.repetitions}",
    )


def _compiled(config: CheckConfig) -> list[str]:
    numbers = (config.batch_sizes, *config.sizes, str(config.repetitions))
    return _program("compiled_baseline.py", config.model, "float16", config.torch_device, *numbers)


def _running_batch(config: CheckConfig) -> list[str]:
    rows = config.batch_sizes.rpartition(",")[2]
    where = (str(config.bundle), config.device, rows)
    return _program("running_batch.py", *where, *config.sizes, *_SCHEDULES)


def _tensorrt(config: CheckConfig) -> list[str]:
    return ["bash", str(_FOLDER / "tensorrt.sh"), str(config.work), *config.sizes]


PARTS = (
    Part(
        name="tests",
        proves="copies, captured graphs, the gather kernel's PTX; tokens equal the CPU's, ties "
        "aside, for every structure; 40 random requests of a structure in a running batch, each "
        "as alone; limits of memory; a server; whether texts with drafts stay equal",
        seconds=150,
        command=_tests,
    ),
    Part(name="export", proves="the bundle whose speed is measured", seconds=50, command=_export),
    Part(
        name="speed",
        proves="steps, first token, share of the bandwidth",
        seconds=80,
        command=_speed,
    ),
    Part(
        name="compiled",
        proves="the same of transformers' model with a static cache and torch.compile",
        seconds=70,
        command=_compiled,
    ),
    Part(
        name="running-batch",
        proves="tokens per second of requests at several depths, beside static batches",
        seconds=40,
        command=_running_batch,
    ),
    Part(
        name="tensorrt",
        proves="NVIDIA's full TensorRT, where it is installed, builds plans and runs them",
        seconds=60,
        command=_tensorrt,
    ),
)
