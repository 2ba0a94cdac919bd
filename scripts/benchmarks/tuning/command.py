"""Measure training steps at full and reduced depth; print the table of docs/guides/tuning.md.

    source scripts/setup_environment.sh && python scripts/bench.py tuning

Random texts and weights; takes a few minutes on 2 cores. Only ratios within one run are meaningful.
"""

from __future__ import annotations

import argparse
from importlib.metadata import version

import torch

from benchmarks.tuning.steps import Workload, measure_steps
from skipdec.calib.tuning.start import read_fresh_model
from skipdec.engines.host.console import markdown_table
from skipdec.engines.host.processor import available_cores, processor_name

WORKLOADS = (
    Workload("short answers", (14, 45), (8, 40)),
    Workload("long answers", (8, 24), (96, 160)),
)


_HEADINGS = (
    "texts",
    "schedule",
    "ms per step",
    "steps per second ÷ full",
    "needed ÷ full",
    "padding",
)


def main() -> None:
    """Measure every workload and print one table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--sizes", default="layers=12,width=256,heads=4")
    parser.add_argument("--vocab-size", type=int, default=1500)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--schedules", nargs="+", default=["2x", "4x"])
    parser.add_argument("--repetitions", type=int, default=15)
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--threads", type=int, default=available_cores())
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    number_type = "bfloat16 autocast" if arguments.bf16 else "float32"

    print(
        f"{processor_name()}, {arguments.threads} threads, torch {version('torch')}, transformers "
        f"{version('transformers')}; {arguments.sizes}, vocabulary {arguments.vocab_size}, batch "
        f"{arguments.batch_size}, {number_type}, median of {arguments.repetitions} interleaved "
        "steps\n"
    )
    rows = []
    for workload in WORKLOADS:
        measured = measure_steps(
            workload,
            read_fresh_model(arguments.sizes),
            arguments.schedules,
            vocab_size=arguments.vocab_size,
            batch_size=arguments.batch_size,
            repetitions=arguments.repetitions,
            bf16=arguments.bf16,
        )
        rows += [
            (
                workload.name,
                row.name,
                f"{row.seconds * 1e3:.0f}",
                f"{row.speedup:.2f}×",
                f"{row.depth_share:.2f}",
                f"{row.padding - 1:.0%}",
            )
            for row in measured
        ]
    print(markdown_table(_HEADINGS, rows))
