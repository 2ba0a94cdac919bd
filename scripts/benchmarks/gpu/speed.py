"""Measure one batch size: skipdec at several schedules, then the compiled Hugging Face model.

    python scripts/benchmarks/gpu/speed.py '{"bundle": "opt-1.3b", "batch_size": 8, ...}'

The argument is JSON with the fields of SpeedConfig. Both run in this one call, so on one device,
each in its own process. What fails is a problem of the result; the other one's figures stay.
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
    batch_size: int
    schedules: list[str]
    prompt_length: int
    num_tokens: int
    repetitions: int


def main() -> None:
    """Print both results, and the problems."""
    config = SpeedConfig(**json.loads(sys.argv[1]))
    result: dict[str, Any] = {"problems": []}
    for name, command in (("skipdec", bench(config)), ("baseline", baseline(config))):
        try:
            result[name] = json.loads(_output(command))
        except subprocess.CalledProcessError as error:
            words = str(error.stderr).strip()[-_SHOWN:]
            result["problems"].append(f"{name} ended with {error.returncode}: {words}")
    print(json.dumps(result))


def bench(config: SpeedConfig) -> list[str]:
    """Return the command of ``skipdec bench``."""
    return skipdec_command(
        "bench",
        config.bundle,
        f"--batch-sizes={config.batch_size}",
        *(f"--schedule={schedule}" for schedule in config.schedules),
        f"--prompt-len={config.prompt_length}",
        f"--gen-len={config.num_tokens}",
        f"--repetitions={config.repetitions}",
        f"--device={config.device}",
        "--json",
    )


def baseline(config: SpeedConfig) -> list[str]:
    """Return the command of the compiled model; where torch is missing, it says so and fails."""
    missing = [name for name in ("torch", "transformers") if find_spec(name) is None]
    if missing:
        message = f"{' and '.join(missing)} not installed"
        return [sys.executable, "-c", f"import sys; sys.exit({message!r})"]
    sizes = (config.batch_size, config.prompt_length, config.num_tokens, config.repetitions)
    program = str(_FOLDER / "compiled_baseline.py")
    return [
        *(sys.executable, program, config.model, "float16", config.torch_device),
        *map(str, sizes),
    ]


def _output(command: list[str]) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    main()
