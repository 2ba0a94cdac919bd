"""Measure skipdec at several batch sizes and schedules, then the compiled Hugging Face model.

    python scripts/benchmarks/gpu/speed.py '{"bundle": "opt-1.3b", "batch_sizes": [1, 8], ...}'

The argument is JSON with the fields of SpeedConfig. Both run in this one call, so on one device,
each in its own process. What fails is a problem of the result; all other figures stay.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.process import skipdec_command

_FOLDER = Path(__file__).parent
_SHOWN = 600  # last characters shown of a failure


@dataclass(frozen=True, kw_only=True)
class SpeedConfig:
    """What is measured; ``torch_device`` is Hugging Face's device."""

    bundle: str
    model: str
    device: str
    torch_device: str
    batch_sizes: list[int]
    schedules: list[str]
    prompt_length: int
    num_tokens: int
    repetitions: int


def main() -> None:
    """Print both results, and the problems."""
    config = SpeedConfig(**json.loads(sys.argv[1]))
    result: dict[str, Any] = {"problems": []}
    for name, command in (("skipdec", bench(config)), ("baselines", baseline(config))):
        ended = subprocess.run(command, capture_output=True, text=True)
        if ended.returncode:
            words = ended.stderr.strip()[-_SHOWN:]
            result["problems"].append(f"{name} ended with {ended.returncode}: {words}")
        if name == "baselines":
            result[name] = [json.loads(line) for line in ended.stdout.splitlines()]
        elif not ended.returncode:
            result[name] = json.loads(ended.stdout)
    print(json.dumps(result))


def bench(config: SpeedConfig) -> list[str]:
    """Return the command of ``skipdec bench``."""
    return skipdec_command(
        "bench",
        config.bundle,
        f"--batch-sizes={_joined(config)}",
        *(f"--schedule={schedule}" for schedule in config.schedules),
        f"--prompt-len={config.prompt_length}",
        f"--gen-len={config.num_tokens}",
        f"--seconds={4 * config.repetitions}",
        f"--device={config.device}",
        "--json",
    )


def baseline(config: SpeedConfig) -> list[str]:
    """Return the command of the compiled model; where torch is missing, it says so and fails."""
    missing = [name for name in ("torch", "transformers") if find_spec(name) is None]
    if missing:
        message = f"{' and '.join(missing)} not installed"
        return [sys.executable, "-c", f"import sys; sys.exit({message!r})"]
    sizes = (_joined(config), config.prompt_length, config.num_tokens, config.repetitions)
    program = str(_FOLDER / "compiled_baseline.py")
    return [
        *(sys.executable, program, config.model, "float16", config.torch_device),
        *map(str, sizes),
    ]


def _joined(config: SpeedConfig) -> str:
    return ",".join(map(str, config.batch_sizes))


if __name__ == "__main__":
    main()
