"""``skipdec doctor``: versions, hardware, bandwidth, and remedies for missing parts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import typer

from ...engines.host.console import print_facts, print_json, reports_errors, result_console
from ...engines.host.options import AsJson

EXAMPLES = """
[bold]Examples[/bold]

skipdec doctor

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
    if as_json:
        print_json(report)
    else:
        _print_report(report)


def _print_report(report: dict[str, Any]) -> None:
    installed = [f"{name} {seen}" for name, seen in report["packages"].items() if seen]
    facts = [
        ("python", f"{report['python']}, {report['platform']}", ""),
        ("packages", ", ".join(installed), ""),
        ("execution providers", ", ".join(report["execution_providers"]) or "none", ""),
        ("processor", f"{report['processor']}, {report['cores']} cores usable", ""),
        ("instruction sets", ", ".join(report["instruction_sets"]) or "unknown", ""),
    ]
    kernels = report["kernels"]
    chosen = f"skipdec's, compiled; run on {kernels['instruction_set']}"
    facts.append(
        ("CPU kernels", kernels["problem"], "yellow")
        if kernels["problem"]
        else ("CPU kernels", chosen, "")
    )
    native = report["libskipdec"]
    facts.append(
        ("libskipdec", native["problem"], "yellow")
        if native["problem"]
        else ("libskipdec", f"ABI version {native['abi_version']}, {native['path']}", "")
    )
    if bandwidth := report["bandwidth"]:
        speed = bandwidth["bytes_per_second"] / 1e9
        facts.append(("memory reads", f"{speed:.1f} GB/s with {bandwidth['threads']} threads", ""))
    facts += _gpu_facts(report)
    facts += [
        (
            f"missing: {missing['extra']}",
            f"needs {', '.join(missing['modules'])}: {missing['install']}",
            "yellow",
        )
        for missing in report["missing"]
    ]
    print_facts(result_console(), facts)


def _gpu_facts(report: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    found = report["gpu"]
    for gpu in found["gpus"]:
        capability, memory = gpu["compute_capability"], gpu["memory"] / 2**30
        details = f"compute capability {capability}, {memory:.0f} GiB, CUDA {found['cuda']}"
        yield f"GPU {gpu['index']}", f"{gpu['name']}, {details}", ""
    if not found["gpus"]:
        yield "GPU", found["note"], ""
    for backend, state in report["gpu_backends"].items():
        if state["version"]:
            yield backend, state["version"], ""
        elif found["gpus"]:  # useless elsewhere
            yield backend, state["problem"], "yellow"
