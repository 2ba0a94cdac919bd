"""``skipdec doctor``: versions, hardware, bandwidth, and how to get what is missing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...engines.host.console import print_json, reports_errors, result_console
from ...engines.host.options import AsJson

if TYPE_CHECKING:
    from rich.table import Table

_EXAMPLES = """
[bold]Examples[/bold]

skipdec doctor

skipdec doctor --threads 2 --json
"""


def register(app: typer.Typer) -> None:
    """Add ``doctor`` to ``app``."""
    app.command("doctor", epilog=_EXAMPLES)(doctor)


@reports_errors
def doctor(
    threads: Annotated[
        int | None, typer.Option(min=1, help="of the bandwidth measurement; default: all cores")
    ] = None,
    bandwidth: Annotated[
        bool, typer.Option(help="measure memory bandwidth: a second or two, 1 GiB")
    ] = True,
    as_json: AsJson = False,
) -> None:
    """Show what this machine and installation can do, and how to get what is missing."""
    from ..measuring.doctor import examine_machine

    report = examine_machine(threads=threads, bandwidth=bandwidth)
    if as_json:
        print_json(report)
    else:
        _print_report(report)


def _print_report(report: dict[str, Any]) -> None:
    from rich.table import Table

    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(overflow="fold", min_width=12)
    table.add_column(overflow="fold")
    table.add_row("python", f"{report['python']}, {report['platform']}")
    installed = [f"{name} {seen}" for name, seen in report["packages"].items() if seen]
    table.add_row("packages", ", ".join(installed))
    table.add_row("execution providers", ", ".join(report["execution_providers"]) or "none")
    table.add_row("processor", f"{report['processor']}, {report['cores']} cores usable")
    table.add_row("instruction sets", ", ".join(report["instruction_sets"]) or "not known")
    table.add_row("int8 weights", f"{report['int8_weight_bits']} bits")
    if bandwidth := report["bandwidth"]:
        speed = bandwidth["bytes_per_second"] / 1e9
        table.add_row("memory reads", f"{speed:.1f} GB/s with {bandwidth['threads']} threads")
    _add_gpus(table, report)
    for missing in report["missing"]:
        reason = f"needs {', '.join(missing['modules'])}: {missing['install']}"
        table.add_row(f"missing: {missing['extra']}", reason, style="yellow")
    result_console().print(table)


def _add_gpus(table: Table, report: dict[str, Any]) -> None:
    found = report["gpu"]
    for gpu in found["gpus"]:
        capability, memory = gpu["compute_capability"], gpu["memory"] / 2**30
        details = f"compute capability {capability}, {memory:.0f} GiB, CUDA {found['cuda']}"
        table.add_row(f"GPU {gpu['index']}", f"{gpu['name']}, {details}")
    if not found["gpus"]:
        table.add_row("GPU", found["note"])
    for backend, state in report["gpu_backends"].items():
        if state["version"]:
            table.add_row(backend, state["version"])
        elif found["gpus"]:  # of no use elsewhere, and the extras are listed below in any case
            table.add_row(backend, state["problem"], style="yellow")
