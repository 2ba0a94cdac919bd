"""The parts of the GPU check, in order of worth: what each proves, how it runs, how long it takes.

Each part is a program that prints JSON. ``problems`` of it, if it has any, are what failed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from benchmarks.process import skipdec_command

_FOLDER = Path(__file__).parent


@dataclass(frozen=True, kw_only=True)
class CheckConfig:
    """What is measured; ``work`` keeps bundles, which a fresh machine does not have."""

    work: Path
    model: str = "opt-1.3b"
    device: str = "cuda"
    torch_device: str = "cuda"
    bundle: Path | None = None  # float16; None: random weights of ``model``, which need torch
    batch_sizes: tuple[int, ...] = (1, 8, 64)
    schedules: tuple[str, ...] = ("full", "2x", "5x")
    prompt_length: int = 128
    num_tokens: int = 64
    repetitions: int = 5
    probe_bytes: int = 2**30
    attempted_model: str = "opt-125m"  # by TensorRT
    tests: tuple[str, ...] = ()  # further arguments of pytest

    @property
    def is_rehearsal(self) -> bool:
        """True if this only proves that the check works."""
        return self.device == "rehearsal"

    @property
    def speed_bundle(self) -> Path:
        """The bundle whose speed is measured."""
        return self.bundle or self.work / f"{self.model}-onnxruntime"

    @property
    def measured(self) -> dict[str, object]:
        """What must be the same in a call that continues another one."""
        fields = asdict(self)
        return {name: fields[name] for name in ("model", "device", "prompt_length", "num_tokens")}


Command = Callable[[CheckConfig], list[str]]


@dataclass(frozen=True, kw_only=True)
class Part:
    """One part: that of ``worth`` 1 comes first; ``seconds`` are expected on an H100.

    A part that runs for ``timeout`` seconds hangs. With ``needs_bundle`` the bundle of
    ``EXPORT`` is made first where it is missing.
    """

    name: str
    worth: int = 0  # its place in ``parts_of``
    proves: str
    seconds: float
    timeout: float
    command: Command
    needs_bundle: bool = False


def program(name: str, *arguments: object) -> list[str]:
    """Return the command that runs a file of this folder."""
    return [sys.executable, str(_FOLDER / name), *map(str, arguments)]


def _tests(*paths: str) -> Command:
    """Return the command of tests on CUDA; a rehearsal runs those on host memory instead."""

    def command(config: CheckConfig) -> list[str]:
        marked = ["-m", "not gpu and not slow"] if config.is_rehearsal else ["-m", "gpu"]
        chosen = [*marked, "-k", "not tensorrt"]  # which has a part of its own
        if not config.is_rehearsal:
            chosen += ["-n", "8", "--dist", "worksteal"]
        return program("selected_tests.py", *chosen, *paths, *config.tests)

    return command


def _speed(config: CheckConfig) -> list[str]:
    return skipdec_command(
        *("bench", str(config.speed_bundle), f"--device={config.device}", "--json"),
        f"--batch-sizes={','.join(map(str, config.batch_sizes))}",
        *(f"--schedule={schedule}" for schedule in config.schedules),
        f"--prompt-len={config.prompt_length}",
        f"--gen-len={config.num_tokens}",
        f"--seconds={4 * config.repetitions}",
    )


def _compiled(config: CheckConfig) -> list[str]:
    sizes = ",".join(map(str, config.batch_sizes))
    numbers = (config.prompt_length, config.num_tokens, config.repetitions)
    return program(
        "compiled_baseline.py", config.model, "float16", config.torch_device, sizes, *numbers
    )


def _device(config: CheckConfig) -> list[str]:
    return program("device_facts.py", config.device, config.probe_bytes)


def _running_batch(config: CheckConfig) -> list[str]:
    sizes = (max(config.batch_sizes), config.prompt_length, config.num_tokens)
    return program(
        "running_batch.py", config.speed_bundle, config.device, *sizes, *config.schedules
    )


def _step_cost(config: CheckConfig) -> list[str]:
    sizes = ",".join(map(str, config.batch_sizes))
    return program(
        "step_cost.py",
        *(config.speed_bundle, config.device, config.prompt_length, config.num_tokens, sizes),
        *config.schedules,
    )


def _tensorrt(config: CheckConfig) -> list[str]:
    return program("tensorrt_attempt.py", "tensorrt", config.attempted_model, config.work)


def _export(config: CheckConfig) -> list[str]:
    return skipdec_command(
        *("export", config.model, "-o", str(config.speed_bundle), "--fp16"),
        *("--load-format=dummy", "--no-verify"),
        "--kernels=onnxruntime",  # the only ones that GPUs support
        f"--max-seq-len={config.prompt_length + config.num_tokens}",
    )


EXPORT = Part(
    name="export",
    proves="nothing: makes the bundle whose speed is measured",
    seconds=50,
    timeout=300,
    command=_export,
)


def parts_of(config: CheckConfig) -> tuple[Part, ...]:
    """Return all parts, the most worthy first."""
    return tuple(replace(part, worth=place) for place, part in enumerate(_PARTS, start=1))


_PARTS = (
    Part(
        name="device",
        proves="the device answers; its memory's bandwidth",
        seconds=15,
        timeout=90,
        command=_device,
    ),
    Part(
        name="tests",
        proves="copies, captured graphs, the gather kernel's PTX; tokens equal the CPU's, ties "
        "aside, for every structure; 40 random requests of a structure in a running batch, each "
        "as alone; limits of memory; a server; whether texts with drafts stay equal",
        seconds=150,
        timeout=300,
        command=_tests(
            "tests/engines/backends",
            "tests/runtime/devices",
            "tests/runtime/stitching/test_device_drafts.py",
        ),
    ),
    Part(
        name="speed",
        proves="steps, first token, share of the bandwidth",
        seconds=80,
        timeout=300,
        command=_speed,
        needs_bundle=True,
    ),
    Part(
        name="compiled Hugging Face",
        proves="the same of transformers' model with a static cache and torch.compile",
        seconds=70,
        timeout=300,
        command=_compiled,
    ),
    Part(
        name="cost of a step",
        proves="what a step costs beside its engines",
        seconds=30,
        timeout=200,
        command=_step_cost,
        needs_bundle=True,
    ),
    Part(
        name="speed, running batch",
        proves="tokens per second of requests at several depths, beside static batches",
        seconds=40,
        timeout=300,
        command=_running_batch,
        needs_bundle=True,
    ),
    Part(
        name="tensorrt",
        proves="NVIDIA's full TensorRT, where it is installed, builds plans and runs them",
        seconds=60,
        timeout=300,
        command=_tensorrt,
    ),
)
