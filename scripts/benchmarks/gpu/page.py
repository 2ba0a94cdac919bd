"""The page of a record: its outcomes as figures, rows of parts, and words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from benchmarks.gpu.parts import CheckConfig, Part
from benchmarks.gpu.record import Outcome, Record
from benchmarks.gpu.report import (
    Baseline,
    Cell,
    DeviceFacts,
    GpuReport,
    PartRow,
    RunningBatch,
    StepCost,
    Unmeasured,
)

_PACKAGES = ("skipdec", "onnxruntime-gpu", "onnxruntime", "tensorrt", "tensorrt_rtx_cu13", "torch")
_SHOWN = 300  # characters of what a part found
_CELL_FIELDS = (
    "batch_size",
    "realised_depth",
    "step_milliseconds_p50",
    "step_milliseconds_p95",
    "time_to_first_token",
    "tokens_per_second",
    "decode_speedup",
    "bytes_per_step",
)


def report_of(record: Record, parts: Sequence[Part], config: CheckConfig) -> GpuReport:
    """Return the report of everything that ``record`` holds, and of the parts that it lacks."""
    device = _result(record, "device")
    running = _result(record, "speed, running batch")
    costs = _result(record, "cost of a step").get("costs", [])
    speed = _result(record, "speed")
    baselines = {found["batch_size"]: found for found in speed.get("baselines", [])}
    on = device.get("name", "a GPU")
    return GpuReport(
        title=f"{config.model} float16 on {on}",
        conditions=_conditions(config),
        versions=record.versions,
        rehearsal=config.is_rehearsal,
        parts=tuple(_row(part, record.outcome(part.name)) for part in parts),
        device=DeviceFacts(**device) if device else None,
        cells=tuple(_cells(speed)),
        baselines=tuple(_baseline(baseline) for baseline in baselines.values()),
        running_batches=(RunningBatch(backend="onnxruntime", **running),) if running else (),
        costs=tuple(StepCost(**cost) for cost in costs),
        unmeasured=tuple(
            Unmeasured("speed", size, _reason(record.outcome("speed")))
            for size in config.batch_sizes
            if "skipdec" not in speed or size not in baselines
        ),
    )


def versions() -> str:
    """Return the versions of the packages that matter, as a sentence."""
    return f"{', '.join(_installed())}."


def _result(record: Record, name: str) -> dict[str, Any]:
    outcome = record.outcome(name)
    return outcome.result if outcome is not None and outcome.result is not None else {}


def _reason(outcome: Outcome | None) -> str:
    return "not run yet" if outcome is None else outcome.output or outcome.state


def _row(part: Part, outcome: Outcome | None) -> PartRow:
    if outcome is None:
        return PartRow(
            name=part.name,
            proves=part.proves,
            state="not run yet",
            expected=part.seconds,
            seconds=None,
            found="",
        )
    words = outcome.output or str((outcome.result or {}).get("words", ""))
    return PartRow(
        name=part.name,
        proves=part.proves,
        state="tried" if "done" in (outcome.result or {}) else outcome.state,
        expected=part.seconds,
        seconds=outcome.seconds,
        found=_found(outcome.result or {}),
        words=words.replace("```", "'''"),
    )


def _found(result: dict[str, Any]) -> str:
    """Return what a part of tests or an attempt counted, e.g. "12 passed; 3 skipped: no GPU"."""
    if "done" in result:
        return f"done: {', '.join(result['done']) or 'nothing'}"
    if "passed" not in result:
        return ""
    found = [f"{result['passed']} passed"]
    found += [f"{count} skipped: {why[:200]}" for why, count in result.get("skipped", {}).items()]
    for name, figures in result.get("figures", {}).items():
        values = ", ".join(f"{key} {value}" for key, value in figures.items())
        found.append(f"{name.removeprefix('test_')}: {values}")
    text = "; ".join(found)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]} … (all in gpu-check.json)"


def _cells(result: dict[str, Any]) -> Iterator[Cell]:
    for entry in result.get("skipdec", {}).get("measurements", []):
        fields = {name: entry[name] for name in _CELL_FIELDS}
        yield Cell(backend="onnxruntime", schedule=entry["name"], **fields)


def _baseline(document: dict[str, Any]) -> Baseline:
    return Baseline(**{**document, "step_milliseconds": tuple(document["step_milliseconds"])})


def _conditions(config: CheckConfig) -> str:
    weights = "random weights of the real size" if config.bundle is None else config.bundle.name
    return (
        f"{config.model}, float16, {weights}; prompts of {config.prompt_length} tokens, "
        f"{config.num_tokens} generated greedily per row; medians of {config.repetitions}."
    )


def _installed() -> Iterator[str]:
    for name in _PACKAGES:
        try:
            yield f"{name} {version(name)}"
        except PackageNotFoundError:
            continue
