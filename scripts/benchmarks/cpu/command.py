"""Measure the CPU figures of README.md and docs/benchmarks.md.

    python scripts/bench.py cpu --work /tmp/bench
    python scripts/bench.py cpu --work /tmp/bench --parts restaurants --data dev.csv

Each processor has a file of figures, docs/benchmarks/cpu/NAME.json, to which each part is written
as soon as it is measured; "restaurants" goes to docs/benchmarks/one-model.json. Without --parts,
the missing parts are measured. Weights are random (seeded) at real sizes. A run takes about 20 GB
of disk and half an hour on 2 cores, mostly for exports. Run nothing else meanwhile.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.cpu import restaurants
from benchmarks.cpu.bundles import Bundles
from benchmarks.cpu.paired import paired_calls, paired_steps
from benchmarks.process import run_command, skipdec_command
from benchmarks.record import ROOT, Record
from skipdec import use_shared_thread_pool
from skipdec.engines.host.console import markdown_table
from skipdec.engines.host.processor import available_cores, restart_with_huge_pages
from skipdec.engines.kernels.library import find_library

FIGURES = ROOT / "docs" / "benchmarks" / "cpu"
MODEL = "opt-1.3b"
PRODUCTS = ("int8", "int8-onnxruntime", "int4", "int4-onnxruntime")
CACHES = ("int8-onnxruntime", "int8-kv-float32", "int8", "int8-kv-int8")
_ROUNDS = 48
_PROMPT_ROUNDS = 5


def one_row(bundles: Bundles) -> dict[str, Any]:
    """Time steps at batch 1."""
    return paired_steps({kind: bundles.variant(MODEL, kind) for kind in PRODUCTS}, _ROUNDS)


def eight_rows(bundles: Bundles) -> dict[str, Any]:
    """Time steps at batch 8, and at batch 1 in the same rounds."""
    variants = {kind: bundles.variant(MODEL, kind, rows=8) for kind in PRODUCTS}
    variants["int8, 1 row"] = bundles.variant(MODEL, "int8")
    return paired_steps(variants, _ROUNDS)


def prompt(bundles: Bundles) -> dict[str, Any]:
    """Time a prompt of 512 tokens and its first token."""
    variants = {kind: bundles.variant(MODEL, kind) for kind in PRODUCTS}
    calls = {kind: partial(one.first_token, 512) for kind, one in variants.items()}
    return paired_calls(calls, _PROMPT_ROUNDS)


def long_context(bundles: Bundles) -> dict[str, Any]:
    """Time 8 rows that attend to 1,024 positions, by type of the KV cache."""
    variants = {kind: bundles.variant(MODEL, kind, rows=8, context=1024) for kind in CACHES}
    return paired_steps(variants, _ROUNDS // 2)


def halves(bundles: Bundles) -> dict[str, Any]:
    """Time 16-bit weights beside float32 at batch 1."""
    kinds = ("float32", "float16", "bfloat16")
    variants = {kind: bundles.variant(MODEL, kind) for kind in kinds}
    return paired_steps(variants, _ROUNDS // 2)


def schedules(bundles: Bundles) -> dict[str, Any]:
    """Run ``skipdec bench`` with the presets, batch 1 and 8, int8 and int4."""
    found = {}
    for kind in ("int8", "int4"):
        options = [f"--schedule={text}" for text in ("full", "2x", "4x")]
        options += [f"--threads={bundles.threads}", "--batch-sizes=1,8", "--json"]
        command = skipdec_command("bench", str(bundles.path(MODEL, kind)), *options)
        found[f"{MODEL} {kind}"] = json.loads(run_command(command))
    return {"bench": found}


PARTS: dict[str, Callable[[Bundles], dict[str, Any]]] = {
    "one-row": one_row,
    "eight-rows": eight_rows,
    "prompt": prompt,
    "long-context": long_context,
    "halves": halves,
    "schedules": schedules,
}


def main() -> None:
    """Measure the requested parts one by one, and print their figures."""
    restart_with_huge_pages()
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--work", type=Path, required=True, help="directory for bundles (kept)")
    parser.add_argument("--threads", type=int, default=available_cores())
    parser.add_argument(
        "--parts", nargs="+", choices=(*PARTS, "restaurants"), help="(missing ones)"
    )
    parser.add_argument("--data", type=Path, help="E2E's dev.csv, for the part restaurants")
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    use_shared_thread_pool(arguments.threads)
    record = Record.here(FIGURES)
    measured = record.read()["parts"]
    for name in arguments.parts or [name for name in PARTS if name not in measured]:
        if name == "restaurants":
            if arguments.data is None:
                parser.error("the part restaurants needs --data, E2E's dev.csv")
            restaurants.measure_and_draw(arguments.data, arguments.work)
            continue
        bundles = Bundles(arguments.work, arguments.threads)
        try:
            found = PARTS[name](bundles)
        finally:
            bundles.close()
        record.add(name, {"threads": arguments.threads, **found}, versions())
        print(f"{name}:\n{_table(found)}", flush=True)


def versions() -> dict[str, str]:
    """Return versions of the software, and the kernels' instruction set."""
    library = find_library()
    return {
        "skipdec": version("skipdec"),
        "ONNX Runtime": version("onnxruntime"),
        "kernels": "none" if library is None else library.instruction_set,
    }


def _table(found: dict[str, Any]) -> str:
    if "bench" in found:
        columns = ("batch_size", "name", "realised_depth", "step_milliseconds_p50")
        rows = [
            [bundle, *(str(one[name]) for name in columns), str(one["speedup"]["value"])]
            for bundle, document in found["bench"].items()
            for one in document["measurements"]
        ]
        return markdown_table(("bundle", *columns, "speedup"), rows)
    rows = [
        [name, *(str(timing[key]) for key in ("p50", "minimum", "p95")), f"{ratio:.2f}"]
        for (name, timing), ratio in zip(
            found["timings"].items(), found["ratios"].values(), strict=True
        )
    ]
    return markdown_table(("variant", "p50 ms", "fastest", "p95", "÷ the first"), rows)
