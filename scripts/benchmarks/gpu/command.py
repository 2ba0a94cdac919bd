"""Run the GPU check, part by part, most valuable first; scripts/gpu_check.sh calls it.

    python scripts/bench.py gpu --out /tmp/check --seconds 540

A part's output becomes OUT/PART.txt, and OUT/gpu-check.md is the page of all parts. A part whose
file exists is not run again, so that a call continues where the last one stopped. Parts that do not
fit into a call's seconds are left to the next one. --work keeps bundles between calls on one
machine.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.gpu.page import judged_aims, page
from benchmarks.gpu.parts import PARTS, CheckConfig, Part

_SCRIPTS = Path(__file__).parents[2]
_HANGS = 4  # times the expected seconds
_KILLED = 124  # exit code of ``timeout``

# The same parts, but small, and on host memory behind the device's interface.
REHEARSAL: dict[str, Any] = {
    "model": "opt-125m",
    "device": "rehearsal",
    "torch_device": "cpu",
    "batch_sizes": "1,2,4",
    "prompt_length": 16,
    "num_tokens": 8,
    "repetitions": 1,
}


def main() -> int:
    """Run the remaining parts; return 1 if a part failed or an aim was missed."""
    arguments = _arguments()
    deadline = time.monotonic() + arguments.seconds
    config = CheckConfig(work=arguments.work.absolute())
    config = replace(config, **REHEARSAL) if arguments.rehearse else config
    config = replace(config, model=arguments.model) if arguments.model else config
    for directory in (config.work, arguments.out):
        directory.mkdir(parents=True, exist_ok=True)
    written = arguments.out / "gpu-check.md"
    failed = 0
    for part in PARTS:
        result = arguments.out / f"{part.name}.txt"
        left = deadline - time.monotonic()
        if (arguments.part and part.name not in arguments.part) or _is_done(part, result, config):
            continue
        if part.seconds > left:
            _say(f"{part.name}: not begun, needs {part.seconds:.0f} s, {left:.0f} s are left")
            continue
        failed += not _run(part, config, result, min(left, _HANGS * part.seconds))
        written.write_text(page(arguments.out, config), encoding="utf-8")
    print(page(arguments.out, config))
    missed = [met for *_, met in judged_aims(arguments.out) if met is False]
    return int(failed > 0 or (bool(missed) and not arguments.rehearse))


def _is_done(part: Part, result: Path, config: CheckConfig) -> bool:
    """Return True if an earlier call ran the part; a bundle must be on this machine."""
    return result.exists() and (part.name != "export" or config.bundle.exists())


def _run(part: Part, config: CheckConfig, result: Path, seconds: float) -> bool:
    """Run a part for at most ``seconds``; keep its output, or else the reason why it failed."""
    _say(f"{part.name}: about {part.seconds:.0f} s")
    start = time.monotonic()
    ended = run_limited(part.command(config), seconds)
    took = time.monotonic() - start
    _say(f"{part.name}: ended with {ended.returncode} after {took:.0f} s")
    if ended.returncode == 0:
        result.write_text(ended.stdout, encoding="utf-8")
        return True
    why = "killed" if ended.returncode == _KILLED else f"ended with {ended.returncode}"
    words = f"{why} after {took:.0f} s\n{ended.stdout}{ended.stderr}"
    result.with_suffix(".failed").write_text(words, encoding="utf-8")
    return False


def run_limited(command: Sequence[str], seconds: float) -> subprocess.CompletedProcess[str]:
    """Run a command whose whole process group ends after ``seconds``, with exit code 124."""
    paths = [str(_SCRIPTS), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    limited = ["timeout", "--kill-after=5", f"{seconds:.1f}", *command]
    return subprocess.run(
        limited, cwd=_SCRIPTS.parent, env=environment, capture_output=True, text=True
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="for the results and the page")
    parser.add_argument("--seconds", type=float, default=540, help="limit of this call")
    parser.add_argument(
        "--work",
        type=Path,
        default=Path(tempfile.gettempdir()) / "skipdec-gpu-check",
        help="directory for bundles, which are kept",
    )
    parser.add_argument("--model", help="whose speed is measured (opt-1.3b)")
    names = [part.name for part in PARTS]
    parser.add_argument("--part", action="append", choices=names, help="only these; repeat")
    parser.add_argument("--rehearse", action="store_true", help="without a GPU, a small model")
    return parser.parse_args()


def _say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)
