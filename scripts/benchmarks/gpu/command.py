"""Run the GPU check, part by part, and write one page and one JSON; scripts/gpu_check.sh calls it.

    python scripts/bench.py gpu --out /tmp/check --seconds 540
    python scripts/bench.py gpu --out /tmp/check --resume gpu-check.json     continues there

Both files are written again after each part. --work keeps bundles between calls on one machine.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.gpu.check import Check
from benchmarks.gpu.page import judged_aims, page, versions
from benchmarks.gpu.parts import EXPORT, CheckConfig, Part, parts_of
from benchmarks.gpu.record import Record
from skipdec.engines.errors import SkipDecError, UsageError
from skipdec.engines.host.gpus import survey_gpus

# The same parts on host memory, behind the device's interface, and small.
REHEARSAL: dict[str, Any] = {
    "model": "opt-125m",
    "device": "rehearsal",
    "torch_device": "cpu",
    "batch_sizes": (1, 2, 4),
    "prompt_length": 16,
    "num_tokens": 8,
    "repetitions": 1,
    "probe_bytes": 2**26,
}


def main() -> int:
    """Run what is left; return 1 if a part failed or a target was missed."""
    arguments = _arguments()
    arguments.out.mkdir(parents=True, exist_ok=True)
    try:
        config = _config(arguments)
        parts = _chosen(parts_of(config), arguments.part, arguments.again)
        record = _begun(config, arguments.resume or _earlier(arguments.out), arguments.again)
    except SkipDecError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    _say(plan(parts, record, arguments.seconds))
    written, document = arguments.out / "gpu-check.md", arguments.out / "gpu-check.json"

    def save(record: Record) -> None:
        record.save(document)
        written.write_text(page(record, parts_of(config), config), encoding="utf-8")

    check = Check(
        config,
        parts,
        record,
        seconds=arguments.seconds,
        gpu=", ".join(gpu.name for gpu in survey_gpus().gpus),
        save=save,
        progress=_say,
    )
    record = check.run()
    print(written.read_text(encoding="utf-8"))
    if any(outcome.state != "passed" for outcome in record.outcomes):
        return 1
    return int(not config.is_rehearsal and any(met is False for *_, met in judged_aims(record)))


def plan(parts: Sequence[Part], record: Record, seconds: float) -> str:
    """Return the parts with their expected minutes, and those that earlier calls have finished."""
    left = [part for part in parts if not record.is_finished(part.name)]
    total = sum(part.seconds for part in left)
    total += EXPORT.seconds if any(part.needs_bundle for part in left) else 0
    lines = [
        f"{part.worth:2}. {part.name:20} {part.seconds / 60:4.1f} min  "
        + ("finished before" if record.is_finished(part.name) else part.proves)
        for part in parts
    ]
    return "\n".join(
        [*lines, f"left: {total / 60:.1f} min expected on an H100; this call: {seconds / 60:.1f}"]
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="for gpu-check.md and .json")
    parser.add_argument("--resume", type=Path, help="gpu-check.json of an earlier call (of --out)")
    parser.add_argument("--seconds", type=float, default=540, help="limit of this call")
    parser.add_argument(
        "--work",
        type=Path,
        default=Path(tempfile.gettempdir()) / "skipdec-gpu-check",
        help="directory for bundles, which are kept",
    )
    parser.add_argument("--bundle", type=Path, help="float16; default: random weights, need torch")
    parser.add_argument("--model", help="whose speed is measured (opt-1.3b)")
    parser.add_argument("--part", action="append", default=[], help="only these; repeat")
    parser.add_argument("--again", action="append", default=[], help="run this one again; repeat")
    parser.add_argument("--tests", action="append", default=[], help="argument of pytest; repeat")
    parser.add_argument("--rehearse", action="store_true", help="without a GPU, a small model")
    return parser.parse_args()


def _config(arguments: argparse.Namespace) -> CheckConfig:
    changes = REHEARSAL if arguments.rehearse else {}
    work = arguments.work / "rehearsal" if arguments.rehearse else arguments.work
    if arguments.model:
        changes = {**changes, "model": arguments.model}
    config = CheckConfig(work=work, bundle=arguments.bundle, tests=tuple(arguments.tests))
    return replace(config, **changes)


def _chosen(parts: Sequence[Part], wanted: Sequence[str], again: Sequence[str]) -> tuple[Part, ...]:
    """Return the parts of these names, or all. Raises UsageError for an unknown name."""
    names = [part.name for part in parts]
    unknown = [name for name in (*wanted, *again) if name not in names]
    if unknown:
        raise UsageError(
            "part", f"{', '.join(map(repr, unknown))} is none; allowed: {', '.join(names)}"
        )
    return tuple(part for part in parts if not wanted or part.name in wanted)


def _earlier(out: Path) -> Path | None:
    """Return the JSON that an earlier call left in the same directory, if it did."""
    path = out / "gpu-check.json"
    return path if path.exists() else None


def _begun(config: CheckConfig, resume: Path | None, again: Sequence[str]) -> Record:
    """Return the record to continue, without the parts that shall run again."""
    if resume is None:
        return Record(measured=config.measured, versions=versions())
    record = Record.load(resume)
    record.require_same(config.measured, resume)
    kept = tuple(one for one in record.outcomes if one.name not in again)
    return replace(record, outcomes=kept)


def _say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)
