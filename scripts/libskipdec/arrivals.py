"""Random requests to libskipdec, all together with drafts and each alone without drafts.

They come in batches, each to an engine of its own. Prompts, lengths, schedules, completions,
temperatures, stop strings, clients, arrivals and cancellations are random, and memory is short, so
that rows wait for it. Prompts and seeds recur, so that n-grams know many of the texts.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from skipdec.runtime.libskipdec.paths import onnxruntime_library
from skipdec.runtime.schedule.text import parse_schedule

_FIND = Path(__file__).parents[2] / "tests/support/native/programs.py"
_ALONE = 1 << 30  # deltas that never come, so a request starts when those before it have ended
_STOPS = ((), (), ("a",), ("e", "th"), ("0", "\n", "Z"))
_HORIZON = 30

Line = dict[str, Any]
"""A request of tests/runtime/libskipdec/programs/generate.cpp."""
Outputs = list[dict[str, Any]]
"""The completions of a request."""


@dataclass(frozen=True)
class Findings:
    """Texts that differ, and counts of drafts."""

    failures: int
    drafted: int
    accepted: int


@dataclass(frozen=True)
class NativeEngine:
    """Runs requests by the program `generate`, each call on an engine of its own."""

    program: Path
    bundle: Path

    def run(self, lines: Sequence[Line], **options: object) -> list[Outputs]:
        """Return the completions of each request; ``options`` are those of the program."""
        done = subprocess.run(
            [self.program, self.bundle, json.dumps(options)],
            input="".join(json.dumps(line) + "\n" for line in lines),
            env=os.environ | {"SKIPDEC_ONNXRUNTIME": str(onnxruntime_library())},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        return [answer["outputs"] for answer in json.loads(done.stdout)]


def find_program() -> Path | None:
    """Return the program `generate`, compiled if necessary; None if it can't be compiled here."""
    command = [sys.executable, str(_FIND), "generate"]
    found = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    return Path(found) if found else None


def draw_lines(
    chance: random.Random, count: int, num_layers: int, schedules: Sequence[str]
) -> list[Line]:
    """Draw the requests of a batch; about one in ten is cancelled, every third has no drafts."""
    lines: list[Line] = []
    after = 0
    for _ in range(count):
        after += chance.choice((0, 0, 1, 6, 20))
        line = _draw_line(chance, num_layers, schedules)
        if lines and chance.random() < 0.6:
            known = chance.choice(lines)
            length = line["params"]["max_tokens"]
            line["params"] = known["params"] | {"max_tokens": length}
            line |= {"prompt": known["prompt"], "schedule": known["schedule"]}
        if chance.random() < 0.3:
            line["params"] = line["params"] | {"draft": "off"}
        lines.append(line | {"after": after})
    return lines


def _draw_line(chance: random.Random, num_layers: int, schedules: Sequence[str]) -> Line:
    n = chance.choice((1, 1, 1, 2, 3))
    params = {
        "n": n,
        "max_tokens": chance.choice((1, 2, 5, 9, 20, _HORIZON)),
        "temperature": 0.8 if n > 1 else chance.choice((0.0, 0.8)),
        "seed": chance.randrange(1 << 30),
        "ignore_eos": chance.random() < 0.7,
        "stop": chance.choice(_STOPS),
        "client": chance.choice("abc"),
    }
    schedule = parse_schedule(chance.choice(schedules), num_layers=num_layers, horizon=_HORIZON)
    line: Line = {
        "prompt": [chance.randrange(4, 90) for _ in range(chance.randint(1, 30))],
        "params": params,
        "schedule": json.dumps(schedule.to_document()),
    }
    if chance.random() < 0.1:
        line["patience"] = chance.randint(0, 9)
    return line


def compare(
    engine: NativeEngine, lines: Sequence[Line], chance: random.Random, **options: object
) -> Findings:
    """Run the requests together with ``options``, which name a draft, and each alone without it."""
    alone = engine.run([_alone(line) for line in lines])
    together = engine.run(lines, prefix_cache=chance.choice((0, 1, 2)), **options)
    failures = 0
    for line, given, expected in zip(lines, together, alone, strict=True):
        if not all(map(_is_right, given, expected)):
            failures += 1
            print(f"{line} wrote {given}; alone {expected}")
    drafts = [output["drafts"] for outputs in together for output in outputs]
    return Findings(failures, sum(one[1] for one in drafts), sum(one[2] for one in drafts))


def _alone(line: Line) -> Line:
    """Return the request without cancellation, to start when all earlier ones have ended."""
    kept = {name: value for name, value in line.items() if name != "patience"}
    return kept | {"after": _ALONE}


def _is_right(given: dict[str, Any], alone: dict[str, Any]) -> bool:
    """Return True if an output equals that of the request alone, or its beginning if cancelled."""
    length = len(given["token_ids"])
    if given["finish_reason"] == "abort":
        return bool(given["token_ids"] == alone["token_ids"][:length])
    compared = ("text", "streamed", "token_ids", "layers", "finish_reason", "stop_reason")
    return all(given.get(name) == alone.get(name) for name in compared)
