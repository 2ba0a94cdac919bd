"""The Markdown page of a GPU check: aims, tables of figures, and messages of failed parts."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.gpu.parts import PARTS, CheckConfig
from skipdec.engines.host.console import markdown_table
from skipdec.engines.host.gpus import survey_gpus

# Milliseconds of a step ÷ those of the compiled Hugging Face model, at every batch size.
AIMS = {"full": 1.0, "2x": 0.6, "5x": 0.3}

_PACKAGES = ("skipdec", "onnxruntime-gpu", "onnxruntime", "tensorrt", "torch")
_SHOWN = 1500  # last characters of messages
_BENCH = (  # fields of a measurement of ``skipdec bench``
    "batch_size",
    "name",
    "realised_depth",
    "step_milliseconds_p50",
    "step_milliseconds_p95",
    "time_to_first_token",
    "tokens_per_second",
    "bytes_per_step",
)


def page(out: Path, config: CheckConfig) -> str:
    """Return the page of all results in ``out`` and the missing parts."""
    gpus = ", ".join(gpu.name for gpu in survey_gpus().gpus) or "no GPU: a rehearsal"
    lines = [f"# {config.model} float16 on {gpus}", ""]
    lines += [
        f"Random weights; prompts of {config.prompt_length} tokens, {config.num_tokens} generated "
        f"greedily per row. {', '.join(_versions())}.",
        "",
    ]
    verdicts = {True: "met", False: "**missed**", None: "open"}
    lines += [f"- {aim}: {seen}, {verdicts[met]}" for aim, seen, met in judged_aims(out)]
    for part in PARTS:
        lines += ["", f"## {part.name}: {part.proves}", "", *_found(out, part.name)]
    return "\n".join(lines) + "\n"


def judged_aims(out: Path) -> Iterator[tuple[str, str, bool | None]]:
    """Yield each aim, its result, and whether it was met; None if nothing was measured."""
    baselines = _result(out, "compiled").get("baselines", [])
    theirs = {one["batch_size"]: median(one["step_milliseconds"]) for one in baselines}
    for schedule, limit in AIMS.items():
        ratios = {
            one["batch_size"]: one["step_milliseconds_p50"] / theirs[one["batch_size"]]
            for one in _result(out, "speed").get("measurements", [])
            if one["name"] == schedule and one["batch_size"] in theirs
        }
        aim = f"`{schedule}`: at most {limit} of compiled Hugging Face's step at every batch size"
        seen = ", ".join(f"{ratio:.2f} at batch {size}" for size, ratio in ratios.items())
        yield aim, seen or "not measured", max(ratios.values()) <= limit if ratios else None


def _found(out: Path, name: str) -> list[str]:
    """Return a table of the figures of a part, or its message."""
    failed, printed = out / f"{name}.failed", out / f"{name}.txt"
    result = _result(out, name)
    rows = result.get("baselines") or result.get("costs") or ([result] if result else [])
    if measured := result.get("measurements"):
        rows = [{key: row[key] for key in _BENCH} for row in measured]
    if rows:
        return [markdown_table([*rows[0]], [_cells(row) for row in rows])]
    for path in (printed, failed):
        if path.exists():
            return ["```text", path.read_text(encoding="utf-8")[-_SHOWN:].strip(), "```"]
    return ["**not run yet**"]


def _result(out: Path, name: str) -> dict[str, Any]:
    """Return the JSON object that a part printed; empty if it printed a message or has not run."""
    try:
        found = json.loads((out / f"{name}.txt").read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _cells(row: Mapping[str, Any]) -> Sequence[str]:
    def shown(value: object) -> str:
        if isinstance(value, list):
            return ", ".join(map(shown, value))
        return f"{value:.4g}" if isinstance(value, float) else str(value)

    return [shown(value) for value in row.values()]


def _versions() -> Iterator[str]:
    for name in _PACKAGES:
        try:
            yield f"{name} {version(name)}"
        except PackageNotFoundError:
            continue
