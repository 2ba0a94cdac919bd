"""``skipdec doctor``: versions, hardware, bandwidth, and remedies for missing parts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import typer

from ...engines.errors import counted
from ...engines.host.console import facts, print_report, reports_errors
from ...engines.host.options import AsJson

EXAMPLES = """
Examples:

\b
skipdec doctor

\b
skipdec doctor --threads 2 --json
"""


@reports_errors
def doctor(
    threads: Annotated[
        int | None,
        typer.Option(min=1, help="threads that measure bandwidth; default: all cores"),
    ] = None,
    bandwidth: Annotated[
        bool, typer.Option(help="measure memory bandwidth; takes 1 to 2 seconds and 1 GiB")
    ] = True,
    as_json: AsJson = False,
) -> None:
    """Show what works on this machine, and how to install the rest."""
    from ..measuring.doctor import examine_machine

    report = examine_machine(threads=threads, bandwidth=bandwidth)
    print_report(report, [facts(_facts(report))], as_json=as_json)


def _facts(report: dict[str, Any]) -> Iterator[tuple[str, str]]:
    installed = [f"{name} {seen}" for name, seen in report["packages"].items() if seen]
    kernels, native = report["kernels"], report["libskipdec"]
    compiled = f"skipdec's, compiled; run on {kernels['instruction_set']}"
    library = f"ABI version {native['abi_version']}, {native['path']}"
    yield "python", f"{report['python']}, {report['platform']}"
    yield "packages", ", ".join(installed)
    yield "execution providers", ", ".join(report["execution_providers"]) or "none"
    yield "processor", f"{report['processor']}, {counted(report['cores'], 'core')} usable"
    yield "instruction sets", ", ".join(report["instruction_sets"]) or "unknown"
    yield "CPU kernels", kernels["problem"] or compiled
    yield "libskipdec", native["problem"] or library
    if bandwidth := report["bandwidth"]:
        speed = bandwidth["bytes_per_second"] / 1e9
        yield "memory reads", f"{speed:.1f} GB/s with {counted(bandwidth['threads'], 'thread')}"
    yield from _gpu_facts(report)
    for missing in report["missing"]:
        needs = ", ".join(missing["modules"])
        yield f"missing: {missing['extra']}", f"needs {needs}: {missing['install']}"


def _gpu_facts(report: dict[str, Any]) -> Iterator[tuple[str, str]]:
    found = report["gpu"]
    for gpu in found["gpus"]:
        capability, memory = gpu["compute_capability"], gpu["memory"] / 2**30
        details = f"compute capability {capability}, {memory:.0f} GiB, CUDA {found['cuda']}"
        yield f"GPU {gpu['index']}", f"{gpu['name']}, {details}"
    if not found["gpus"]:
        yield "GPU", found["note"]
    for backend, state in report["gpu_backends"].items():
        if state["version"]:
            yield backend, state["version"]
        elif found["gpus"]:  # of no use without a GPU
            yield backend, state["problem"]
