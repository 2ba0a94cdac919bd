"""Tables and JSON for an export's or a build's plan and report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from ...engines.host.console import Part, Table, facts, print_report
from ...engines.host.progress import ConsoleProgress
from ...engines.manifest import (
    DRAFT_ENTRY,
    DRAFT_HEAD,
    DRAFT_LAYER,
    DRAFT_STATES,
    TRAINED_HEAD,
    BuildSpec,
    Kernels,
    PrecisionSpec,
)
from ...engines.targets import target_of
from ...runtime.schedule.text import format_schedule
from ..pipeline.plan import BundlePlan, DraftParts
from ..pipeline.report import EngineReport, ExportReport
from ..quantization_config import DEFAULT_TARGET

_DRAFT_PARTS = (DRAFT_STATES, DRAFT_ENTRY, DRAFT_LAYER, TRAINED_HEAD, DRAFT_HEAD)
_CHECKED_LAYERS = ("KV_CACHE_UPDATE", "ATTENTION_INPUT")  # TensorRT's, in each decoder layer


def print_plan(plan: BundlePlan, *, as_json: bool) -> None:
    """Print the plan on stdout and its warnings on stderr."""
    if not as_json:
        ConsoleProgress().planned("", plan.warnings)
    print_report(describe_plan(plan), plan_parts(plan), as_json=as_json)


def describe_plan(plan: BundlePlan) -> dict[str, Any]:
    """Return the plan as a JSON object; sizes in bytes."""
    build = None if plan.tensorrt is None else plan.tensorrt.build
    return {
        "output": str(plan.output),
        "target": plan.target,
        "kernels": plan.kernels,
        **plan.origin,
        "model": plan.model.model_dump(mode="json"),
        "precision": plan.precision.model_dump(mode="json"),
        "build": None if build is None else build.model_dump(mode="json"),
        "schedule": plan.schedule.to_document(),
        "draft": plan.drafts.text,
        "draft_reads": None if plan.drafts.layer is None else list(plan.drafts.layer.reads),
        "draft_head_tokens": plan.drafts.head_tokens,
        "engines": [
            {"name": engine.name, "size": engine.size}
            | ({"capacities": list(engine.capacities)} if engine.capacities else {})
            for engine in plan.engines
        ],
        "canonical_size": plan.canonical_size,
        "temporary_size": plan.temporary_size,
        "size": plan.size,
        "kv_bytes_per_token": plan.kv_bytes_per_token,
        "estimated_seconds": plan.estimated_seconds,
        "warnings": list(plan.warnings),
        "shortage": plan.shortage,
    }


def plan_parts(plan: BundlePlan) -> Iterator[Part]:
    """Yield the output of ``--dry-run``: a table of engines, and facts."""
    engines = []
    for label, members in _grouped(plan.engines):
        capacities = members[0].capacities
        plans = f" x {len(capacities)} plans" if len(capacities) > 1 else ""
        size = _megabytes(sum(engine.size for engine in members))
        engines.append((label + plans, size))
    yield Table(("engine", "size"), engines)
    build = None if plan.tensorrt is None else plan.tensorrt.build
    unverified = "" if plan.verification is None else " without verification"
    temporary = f"{_megabytes(plan.temporary_size)} more, deleted at the end"
    pairs = {
        "model": plan.model.name,
        "precision": describe_precision(plan.precision),
        **kernel_facts(plan.target, plan.kernels),
        **_build_facts(plan.target, build),
        "schedule": format_schedule(plan.schedule),
        "--draft auto": plan.drafts.text or "",
        "drafts": _described_drafts(plan.drafts),
        "canonical graphs": _megabytes(plan.canonical_size) if plan.canonical_size else "",
        "size": _megabytes(plan.size),
        "on the way": temporary if plan.temporary_size else "",
        "KV cache": f"{plan.kv_bytes_per_token / 1e3:,.1f} kB per token and row",
        "estimated time": f"{plan.estimated_seconds:,.0f} s{unverified}",
        "source": plan.origin.get("source", ""),
        "lacking": plan.shortage or "",
        "output": f"{plan.output} (dry run: nothing written)",
    }
    yield facts(pairs.items())


def published(report: ExportReport) -> str:
    """Return a sentence about the published bundle, after an export or a build."""
    return f"{report.output} is published"


def report_parts(report: ExportReport) -> Iterator[Part]:
    """Yield the output of a finished export or build: a table of engines, and facts."""
    engines = []
    for label, members in _grouped(report.engines):
        plans = sum(len(engine.plans) for engine in members)
        resumed = sum(engine.resumed for engine in members)
        notes = [f"{plans} plans"] if plans > len(members) else []
        notes += [f"{resumed} resumed"] if resumed else []
        note = f" ({', '.join(notes)})" if notes else ""
        size = _megabytes(sum(engine.size for engine in members))
        seconds = sum(engine.seconds for engine in members)
        engines.append((label + note, size, f"{seconds:.1f} s"))
    yield Table(("engine", "size", "time"), engines)
    stages = ", ".join(f"{stage} {took:.1f}" for stage, took in report.stage_seconds.items())
    pairs = {
        "model": report.model,
        "precision": describe_precision(report.precision),
        **kernel_facts(report.target, report.kernels),
        **_build_facts(report.target, report.build),
        "plans": "" if report.build is None else "\n".join(describe_plans(report.engines)),
        "schedule": report.schedule,
        "size": _megabytes(report.size),
        "time": f"{report.seconds:.1f} s ({stages})",
        "peak memory": _megabytes(report.peak_memory),
        "verification": describe_verification(report),
        "bundle": str(report.output),
    }
    yield facts(pairs.items())


def describe_plans(engines: tuple[EngineReport, ...]) -> Iterator[str]:
    """Yield what the builder verified, one fact per line."""
    plans = [plan for engine in engines for plan in engine.plans]
    yield f"{len(plans)} built: inputs, outputs and dtypes as requested, no input ignored"
    found = Counter(
        tuple(plan.layer_counts.get(name, 0) for name in _CHECKED_LAYERS) for plan in plans
    )
    for counts, number in found.items():
        if any(counts):
            named = ", ".join(
                f"{n} {name}" for n, name in zip(counts, _CHECKED_LAYERS, strict=True)
            )
            yield f"{named} in each of {number}"


def _build_facts(target: str, build: BuildSpec | None) -> dict[str, str]:
    if build is None:
        return {}
    flags = [f"optimisation level {build.optimization_level}"]
    if build.workspace is not None:
        flags.append(f"workspace {_megabytes(build.workspace)}")
    flags += ["hardware-compatible"] if build.hardware_compatible else []
    flags += ["version-compatible"] if build.version_compatible else []
    return {
        "target": f"{target} {build.version}, compute capability {build.compute_capability}",
        "sizes": f"decode 1 to {build.max_batch_size} rows; prefill 1 to "
        f"{build.max_prefill_rows} rows of 1 to {build.max_prompt_len} tokens; KV buckets "
        f"{', '.join(map(str, build.kv_buckets))}",
        "flags": ", ".join(flags),
    }


def kernel_facts(target: str, kernels: Kernels | None) -> dict[str, str]:
    """Return the kernels that run the engines; {} if the target has no choice."""
    if target != DEFAULT_TARGET:
        return {}
    return {"kernels": "ONNX Runtime's" if kernels is None else f"{kernels}'s own, on the CPU"}


def describe_precision(precision: PrecisionSpec) -> str:
    """Return the number formats in one line.

    E.g. ``float32, weights int4 in blocks of 128, head int8, KV cache float16``.
    """
    cache = "" if precision.kv_dtype is None else f", KV cache {precision.kv_dtype}"
    if precision.quantize == precision.head_quantize == "none":
        return f"{precision.dtype}{cache}"
    blocks = f" in blocks of {precision.block_size}" if precision.block_size else ""
    head = (
        "" if precision.head_quantize == precision.quantize else f", head {precision.head_quantize}"
    )
    return f"{precision.dtype}, weights {precision.quantize}{blocks}{head}{cache}"


def _described_drafts(drafts: DraftParts) -> str:
    """Return the parts that a bundle has for drafts in one line; "" if there are none."""
    trained, tokens, parts = drafts.layer, drafts.head_tokens, []
    if trained is not None:
        depths = ", ".join(map(str, trained.reads))
        parts.append(
            f"a layer that reads states after {depths} layers, for {len(trained.token_ids)} tokens"
        )
    if tokens is not None:
        parts.append(f"a head of the first {tokens} tokens")
    return ", ".join(parts)


def describe_verification(report: ExportReport) -> str:
    """Return the result of verification, one line per kind of check."""
    if report.verification is not None:
        verification = report.verification
        return "\n".join((verification.verdict, *verification.summary()))
    if "trace" in report.stage_seconds:  # an export, not a build
        return "none (--no-verify)"
    if not target_of(report.target).is_compiled:
        return (
            "none: engines were built, not run; 'skipdec generate' runs them, 'skipdec verify "
            "BUNDLE --reference MODEL' compares them where torch is installed"
        )
    return (
        "none: plans were built, not run; 'skipdec verify BUNDLE --reference MODEL' runs them "
        "on a machine with torch and the GPU"
    )


def _grouped(engines: Iterable[Any]) -> list[tuple[str, list[Any]]]:
    """Return embed, all layers, head, candidates and parts for drafts as labelled groups."""
    embed, *others = engines
    drafts = [(engine.name, [engine]) for engine in others if engine.name in _DRAFT_PARTS]
    *layers, head, candidates = others[: len(others) - len(drafts)]
    ends = [("head", [head]), ("candidates", [candidates]), *drafts]
    return [("embed", [embed]), (f"{len(layers)} layers", layers), *ends]


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.1f} MB"
