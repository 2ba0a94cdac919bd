"""Run one of the benchmarks: ``python scripts/bench.py cpu --work /tmp/bench``."""

from __future__ import annotations

import sys
from difflib import get_close_matches
from importlib import import_module
from typing import NamedTuple


class Benchmark(NamedTuple):
    """A benchmark: the module whose ``main`` runs it, and what it measures."""

    module: str
    measures: str


BENCHMARKS = {
    "cpu": Benchmark("cpu.command", "the CPU figures of README.md and docs/benchmarks.md"),
    "peers": Benchmark("peers.command", "CTranslate2, OpenVINO and llama.cpp on the same models"),
    "load": Benchmark("load.command", "what clients of a server, Triton or an engine see"),
    "gpu": Benchmark("gpu.command", "a GPU beside a compiled model; scripts/gpu_check.sh runs it"),
}


def usage() -> str:
    """Return the help text, with a line per benchmark."""
    lines = (f"  {name:8} {each.measures}" for name, each in BENCHMARKS.items())
    return "\n".join(
        ["usage: scripts/bench.py BENCHMARK [OPTIONS]; BENCHMARK --help lists its options", *lines]
    )


def main(arguments: list[str]) -> int:
    """Run the benchmark that ``arguments`` name; return its exit code, 2 for an unknown one."""
    name, *options = arguments or [""]
    if name in ("-h", "--help"):
        print(usage())
        return 0
    if name not in BENCHMARKS:
        close = get_close_matches(name, BENCHMARKS, n=1)
        meant = f"; did you mean {close[0]}?" if close else ""
        problem = f"{name!r} is not a benchmark{meant}" if name else "the benchmark is missing"
        print(f"error: {problem}\n{usage()}", file=sys.stderr)
        return 2
    sys.argv = [f"{sys.argv[0]} {name}", *options]  # argparse's usage names the benchmark
    return import_module(f"benchmarks.{BENCHMARKS[name].module}").main() or 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
