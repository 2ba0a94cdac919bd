"""Measures the figures that skipdec holds itself to on a CPU and writes docs/benchmarks/cpu.md.

    source scripts/setup_environment.sh && python scripts/bench_cpu.py --work /tmp/bench

Weights are random (seeded) at real sizes; about 10 GB of disk and half an hour on 2 cores.
Nothing else should run meanwhile.
"""

from __future__ import annotations

import argparse
from importlib.metadata import version
from pathlib import Path

from bench import cpu_figures

from skipdec.engines.host.processor import available_cores, processor_name, restart_with_huge_pages

OUTPUT = Path(__file__).resolve().parent.parent / "docs" / "benchmarks" / "cpu.md"
PARTS = ("startup", "export", "decoding")


def main() -> None:
    """Measure the parts that were asked for and write one page."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--work", type=Path, required=True, help="directory for bundles; kept")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    parser.add_argument("--threads", type=int, default=available_cores())
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)

    figures: list[cpu_figures.Figure] = []
    tables: list[str] = []
    if "startup" in arguments.parts:
        figures += cpu_figures.startup_figures()
    if "export" in arguments.parts:
        figures += cpu_figures.export_figures(arguments.work)
    if "decoding" in arguments.parts:
        for quantize in ("int8", "int4"):
            bundle = cpu_figures.export_for_bench(quantize, arguments.work)
            document = cpu_figures.bench_bundle(bundle, arguments.threads, arguments.repetitions)
            figures += cpu_figures.decoding_figures(quantize, document)
            tables += [f"\n## {bundle.name}\n", cpu_figures.bench_table(document)]
        int8 = cpu_figures.export_for_bench("int8", arguments.work)
        figures.append(cpu_figures.stitching_figure(int8, arguments.threads))
    page = [
        "# Figures on a CPU\n",
        "Written by `scripts/bench_cpu.py`. Weights are random at real sizes; ratios are taken "
        "within one run.\n",
        f"{processor_name()}, {arguments.threads} threads, skipdec {version('skipdec')}, "
        f"ONNX Runtime {version('onnxruntime')}.\n",
        cpu_figures.figures_table(figures),
        *tables,
    ]
    arguments.output.write_text("\n".join(page) + "\n", encoding="utf-8")
    print(cpu_figures.figures_table(figures))


if __name__ == "__main__":
    restart_with_huge_pages()
    main()
