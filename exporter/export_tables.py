"""An export's plan and report as tables and JSON."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table

from ..engines.manifest import PrecisionSpec
from ..runtime.schedule_text import format_schedule
from .plan import ExportPlan
from .report import ExportReport
from .verify_report import VerificationReport


def describe_plan(plan: ExportPlan) -> dict[str, Any]:
    """The plan as a JSON object; sizes in bytes."""
    return {
        "output": str(plan.output),
        "model": plan.checkpoint.model.model_dump(mode="json"),
        "load_format": plan.checkpoint.load_format,
        "precision": plan.precision.model_dump(mode="json"),
        "schedule": plan.schedule.to_document(),
        "engines": [{"name": engine.name, "size": engine.size} for engine in plan.engines],
        "canonical_size": plan.canonical_size,
        "size": plan.size,
        "kv_bytes_per_token": plan.kv_bytes_per_token,
        "estimated_seconds": plan.estimated_seconds,
        "warnings": list(plan.warnings),
    }


def plan_table(plan: ExportPlan) -> RenderableType:
    """What ``--dry-run`` prints."""
    engines = _engine_table("size")
    for label, members in _grouped(plan.engines):
        engines.add_row(label, _megabytes(sum(engine.size for engine in members)))
    facts = _fact_table()
    facts.add_row("model", plan.checkpoint.model.name)
    facts.add_row("precision", describe_precision(plan.precision))
    facts.add_row("schedule", format_schedule(plan.schedule))
    if plan.canonical_size:
        facts.add_row("canonical graphs", _megabytes(plan.canonical_size))
    facts.add_row("size", _megabytes(plan.size))
    facts.add_row("KV cache", f"{plan.kv_bytes_per_token / 1e3:,.1f} kB per token and row")
    facts.add_row("estimated time", f"{plan.estimated_seconds:,.0f} s without verification")
    facts.add_row("output", f"{plan.output} (dry run: nothing written)")
    return Group(engines, facts)


def report_table(report: ExportReport) -> RenderableType:
    """What a finished export prints."""
    engines = _engine_table("size", "time")
    for label, members in _grouped(report.engines):
        size, seconds = (
            sum(engine.size for engine in members),
            sum(engine.seconds for engine in members),
        )
        resumed = sum(engine.resumed for engine in members)
        note = f" ({resumed} resumed)" if resumed else ""
        engines.add_row(label + note, _megabytes(size), f"{seconds:.1f} s")
    facts = _fact_table()
    facts.add_row("model", report.model)
    facts.add_row("precision", describe_precision(report.precision))
    facts.add_row("schedule", report.schedule)
    facts.add_row("size", _megabytes(report.size))
    stages = ", ".join(f"{stage} {took:.1f}" for stage, took in report.stage_seconds.items())
    facts.add_row("time", f"{report.seconds:.1f} s ({stages})")
    facts.add_row("peak memory", _megabytes(report.peak_memory))
    facts.add_row("verification", describe_verification(report.verification))
    facts.add_row("bundle", str(report.output))
    return Group(engines, facts)


def describe_precision(precision: PrecisionSpec) -> str:
    """Number formats in a line, e.g. ``float32, weights int4 in blocks of 128, head int8``."""
    if precision.quantize == precision.head_quantize == "none":
        return precision.dtype
    blocks = f" in blocks of {precision.block_size}" if precision.block_size else ""
    bits = f", int8 weights of {precision.int8_weight_bits} bits" if _is_narrow(precision) else ""
    head = (
        "" if precision.head_quantize == precision.quantize else f", head {precision.head_quantize}"
    )
    return f"{precision.dtype}, weights {precision.quantize}{blocks}{head}{bits}"


def describe_verification(report: VerificationReport | None) -> str:
    """What verification found, a line for each kind of check."""
    return "none (--no-verify)" if report is None else "\n".join(("passed", *report.summary()))


def _is_narrow(precision: PrecisionSpec) -> bool:
    return precision.int8_weight_bits == 7


def _grouped(engines: Iterable[Any]) -> list[tuple[str, list[Any]]]:
    """Embed, all layers, head, candidates: with one label each."""
    embed, *layers, head, candidates = engines
    ends = [("head", [head]), ("candidates", [candidates])]
    return [("embed", [embed]), (f"{len(layers)} layers", layers), *ends]


def _engine_table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("engine")
    for column in columns:
        table.add_column(column, justify="right")
    return table


def _fact_table() -> Table:
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    return table


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.1f} MB"
