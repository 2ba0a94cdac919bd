"""scripts/bench.py runs the benchmark that its first argument names."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from runpy import run_path

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"
BENCHMARKS = run_path(str(SCRIPTS / "bench.py"))["BENCHMARKS"]


def run_bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPTS / "bench.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True)


def test_help_names_every_benchmark() -> None:
    shown = run_bench("--help")
    assert shown.returncode == 0
    assert [line.split()[0] for line in shown.stdout.splitlines()[1:]] == list(BENCHMARKS)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ((), "the benchmark is missing"),
        (("sevring",), "'sevring' is not a benchmark; did you mean serving?"),
        (("--work", "x"), "'--work' is not a benchmark"),
    ],
)
def test_an_unknown_benchmark_is_refused(arguments: tuple[str, ...], problem: str) -> None:
    refused = run_bench(*arguments)
    assert refused.returncode == 2
    assert refused.stderr.startswith(f"error: {problem}\nusage: ")


def test_usage_of_a_benchmark_names_it() -> None:
    refused = run_bench("gpu")
    assert refused.returncode == 2
    assert "bench.py gpu" in refused.stderr
    assert "--out" in refused.stderr


@pytest.mark.parametrize("name", BENCHMARKS)
def test_every_benchmark_has_a_main(name: str) -> None:
    module = SCRIPTS / "benchmarks" / f"{BENCHMARKS[name].module.replace('.', '/')}.py"
    names = (node.name for node in ast.parse(module.read_text()).body if hasattr(node, "name"))
    assert "main" in names
