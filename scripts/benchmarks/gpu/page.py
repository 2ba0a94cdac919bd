"""The Markdown page of a GPU check: targets, parts, figures, and the words of what failed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from statistics import median
from typing import Any

from benchmarks.gpu.parts import CheckConfig, Part
from benchmarks.gpu.record import Outcome, Record
from skipdec.engines.host.console import escaped, markdown_table

# Milliseconds of a step ÷ those of the compiled Hugging Face model, at every batch size.
AIMS = {"full": 1.0, "2x": 0.6, "5x": 0.3}

_PACKAGES = ("skipdec", "onnxruntime-gpu", "onnxruntime", "tensorrt", "tensorrt_rtx_cu13", "torch")
_SHOWN = 300  # characters of what a part found
_BENCH = (  # fields of a measurement of ``skipdec bench``
    "batch_size",
    "name",
    "realised_depth",
    "step_milliseconds_p50",
    "step_milliseconds_p95",
    "time_to_first_token",
    "tokens_per_second",
    "decode_speedup",
    "bytes_per_step",
)


def page(record: Record, parts: Sequence[Part], config: CheckConfig) -> str:
    """Return the page of everything that ``record`` holds, and of the parts that it lacks."""
    device = _result(record, "device")
    measured = _result(record, "speed").get("measurements", [])
    lines = [f"# {config.model} float16 on {device.get('name', 'a GPU')}", ""]
    if config.is_rehearsal:
        lines += ["A rehearsal without a GPU: it only proves that the script runs.", ""]
    lines += [f"{_conditions(config)} {record.versions}", ""]
    if device:
        lines += [", ".join(f"{name} {value}" for name, value in device.items()), ""]
    if not config.is_rehearsal:
        verdicts = {True: "met", False: "**missed**", None: "open"}
        lines += [f"- {aim}: {seen}, {verdicts[met]}" for aim, seen, met in judged_aims(record)]
        lines += [""]
    rows = [_part_row(part, record.outcome(part.name)) for part in parts]
    lines += [markdown_table(("part", "proves", "state", "seconds", "found"), rows), ""]
    for title, figures in (
        ("skipdec", [_shown(one) for one in measured]),
        ("Hugging Face, static cache, torch.compile", _baselines(record)),
        ("Cost of a step", _result(record, "cost of a step").get("costs", [])),
        ("Running batch", [_result(record, "speed, running batch")]),
    ):
        lines += _section(title, figures)
    for part in parts:
        if words := _words(record.outcome(part.name)):
            lines += [f"## {part.name}", "", "```text", words.replace("```", "'''"), "```", ""]
    return "\n".join(lines)


def versions() -> str:
    """Return the versions of the packages that matter, as a sentence."""
    return f"{', '.join(_installed())}."


def judged_aims(record: Record) -> Iterator[tuple[str, str, bool | None]]:
    """Yield each target, its result, and whether it was met; None if nothing was measured."""
    theirs = {one["batch_size"]: median(one["step_milliseconds"]) for one in _baselines(record)}
    for schedule, limit in AIMS.items():
        ratios = {
            one["batch_size"]: one["step_milliseconds_p50"] / theirs[one["batch_size"]]
            for one in _result(record, "speed").get("measurements", [])
            if one["name"] == schedule and one["batch_size"] in theirs
        }
        aim = f"`{schedule}`: at most {limit} of compiled Hugging Face's step at every batch size"
        if not ratios:
            yield aim, "not measured", None
            continue
        seen = ", ".join(f"{ratio:.2f} at batch {size}" for size, ratio in ratios.items())
        yield aim, seen, max(ratios.values()) <= limit


def _result(record: Record, name: str) -> dict[str, Any]:
    outcome = record.outcome(name)
    return (outcome.result if outcome is not None else None) or {}


def _baselines(record: Record) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = _result(record, "compiled Hugging Face").get("baselines", [])
    return found


def _part_row(part: Part, outcome: Outcome | None) -> Sequence[str]:
    if outcome is None:
        return (part.name, part.proves, "**not run yet**", "", "")
    result = outcome.result or {}
    state = "tried" if "done" in result else outcome.state
    shown = state if state in ("passed", "tried") else f"**{state}**"
    return (part.name, part.proves, shown, f"{outcome.seconds:.0f}", escaped(_found(result)))


def _found(result: Mapping[str, Any]) -> str:
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


def _words(outcome: Outcome | None) -> str:
    return "" if outcome is None else outcome.output or str((outcome.result or {}).get("words", ""))


def _section(title: str, figures: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a table with a column for each field of the figures; none where there are none."""
    found = [one for one in figures if one]
    if not found:
        return []
    rows = [[_cell(value) for value in one.values()] for one in found]
    return [f"## {title}", "", markdown_table([*found[0]], rows), ""]


def _shown(measurement: Mapping[str, Any]) -> dict[str, Any]:
    return {name: measurement[name] for name in _BENCH if name in measurement}


def _cell(value: object) -> str:
    match value:
        case float():
            return f"{value:.4g}"
        case list():
            return ", ".join(map(_cell, value))
        case {"value": ratio, "disturbed": reason}:  # as ``skipdec bench`` prints speed-ups
            return "disturbed" if reason else f"{ratio:.2f}×"
    return str(value)


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
