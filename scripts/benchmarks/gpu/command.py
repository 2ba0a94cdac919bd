"""Measure skipdec on a GPU and write one page; scripts/gpu_check.sh calls it.

    python scripts/bench.py gpu --out /tmp/check --seconds 1500

Finished work is kept in --work: after a time limit, run it again with the same --work to continue.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from benchmarks.gpu.figures import GpuCheck, GpuCheckConfig
from benchmarks.gpu.report import GpuReport, judged_aims, markdown

# The same steps in a few minutes, on the CPU behind the device's interface.
REHEARSAL: dict[str, Any] = {
    "model": "opt-125m",
    "device": "rehearsal",
    "torch_device": "cpu",
    "gpu_arch": "8.9",
    "batch_sizes": (1, 4, 16),
    "prompt_length": 16,
    "num_tokens": 8,
    "repetitions": 1,
    "probe_bytes": 2**26,
}


def main() -> None:
    """Measure, keep the page up to date, and report the targets."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="directory for gpu-check.md")
    parser.add_argument(
        "--work", type=Path, help="directory for bundles and figures, which are kept"
    )
    parser.add_argument("--seconds", type=float, default=1500, help="limit for everything")
    parser.add_argument(
        "--bundle",
        type=Path,
        help="float16 with canonical graphs; default: random weights, which need torch",
    )
    parser.add_argument("--tests", help="the last line of pytest, for the page")
    parser.add_argument("--rehearse", action="store_true", help="without a GPU, a small model")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    page = arguments.out / "gpu-check.md"

    def write(report: GpuReport) -> None:
        page.write_text(markdown(report), encoding="utf-8")

    config = GpuCheckConfig(
        work=arguments.work or arguments.out / "work",
        bundle=arguments.bundle,
        seconds=arguments.seconds,
        **(REHEARSAL if arguments.rehearse else {}),
    )
    report = GpuCheck(config, write).run(arguments.tests)
    print(page.read_text(encoding="utf-8"))
    if not arguments.rehearse and any(met is False for _, _, met in judged_aims(report)):
        raise SystemExit(1)
