"""Feed ``skipdec generate`` malformed JSON lines, and kill it while it resumes.

    python scripts/attack/lines.py --count 20000 --kills 100

Each line must give its result or its error and leave its neighbours alone. Of two writers of one
results file, both killed at random moments and restarted with --resume, one continues and one is
refused; in the end the file has the bytes of an undisturbed run.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from harness import tiny_bundle

import skipdec.engines.backends.ort  # noqa: F401  (saves each child the import)
from skipdec import Generator, SamplingParams
from skipdec.cli import build_app
from skipdec.runtime.commands.lines import RecordRunner
from skipdec.runtime.commands.results import to_bytes
from skipdec.runtime.requests.records import read_records

PARAMS = SamplingParams(temperature=0, max_tokens=4)
KEYS = [
    *SamplingParams.model_fields,
    "id",
    "prompt",
    "prompt_token_ids",
    "schedule",
    "self",
    "cls",
    "",
    "\ud800",
]
NUMBERS = [0, 1, -1, 2, 63, 64, 65, 2**31, 2**63, 10**30, 0.5, 1e-300, 1e300, float("nan")]
TEXTS = [
    "",
    "a",
    "full",
    "2x",
    "2x.json",
    "\0",
    "\ud800",
    "\U0001f600",
    "x" * 100_000,
    "[" * 50,
    "-inf",
]
VALUES: list[Any] = [
    *NUMBERS,
    *TEXTS,
    None,
    True,
    [],
    [0],
    [271],
    [272],
    [[]],
    {},
    list(range(272)),
    ["x"] * 99,
]


def odd_lines(count: int, source: random.Random) -> Iterator[bytes]:
    """Yield lines that resemble records, most of them invalid in some way."""
    for number in range(count):
        document: dict[str, Any] = {"id": number, "prompt": "ab"}
        for _ in range(source.randrange(4)):
            document[source.choice(KEYS)] = source.choice(VALUES)
        line = json.dumps(document).encode()
        if source.random() < 0.1:
            index = source.randrange(len(line))
            line = line[:index] + bytes([source.randrange(256)]) + line[index + 1 :]
        yield line.replace(b"\n", b" ") or b"-"


def attack_lines(bundle: Path, count: int, source: random.Random) -> Counter[str]:
    """Run odd lines; return the count of each outcome."""
    outcomes: Counter[str] = Counter()
    records = list(read_records(odd_lines(count, source), PARAMS))
    with Generator.open(bundle, threads=1, kv_memory=2**20) as generator:
        runner = RecordRunner(generator, records, chunk_size=64, cancelled=lambda: False)
        for lines in runner.run(lambda deltas: None):
            for line in lines:
                to_bytes(line)
                outcomes["error" if "error" in line else "result"] += 1
    outcomes["lost"] = len(records) - outcomes.total()
    return outcomes


def start(arguments: list[str]) -> int:
    """Run ``skipdec generate`` in a forked child, silently; return its process id."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            silent = os.open(os.devnull, os.O_WRONLY)
            os.dup2(silent, 1)
            os.dup2(silent, 2)
            build_app()(["generate", *arguments])
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
        finally:
            os._exit(code)
    return child


def attack_results(bundle: Path, directory: Path, kills: int, source: random.Random) -> bool:
    """Kill pairs of writers; return True if the final file equals that of a run without kills."""
    lines = [json.dumps({"id": number, "prompt": "ab"}) + "\n" for number in range(400)]
    (directory / "in.jsonl").write_text("".join(lines))
    fixed = [str(bundle), "--input", str(directory / "in.jsonl"), "--threads", "1", "-q"]
    fixed += ["--temperature", "0", "--max-tokens", "8", "--max-batch-size", "2", "--output"]
    whole, killed = directory / "whole.jsonl", directory / "killed.jsonl"
    started = time.monotonic()
    os.waitpid(start([*fixed, str(whole)]), 0)
    longest = time.monotonic() - started
    for _ in range(kills):
        pair = [start([*fixed, str(killed), "--resume"]) for _ in range(2)]
        time.sleep(source.uniform(0, longest))
        for child in pair:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    os.waitpid(start([*fixed, str(killed), "--resume"]), 0)
    return killed.read_bytes() == whole.read_bytes()


def main() -> int:
    """Run both attacks and print failures."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--count", type=int, default=20_000, help="lines")
    parser.add_argument("--kills", type=int, default=100, help="pairs of writers")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    source = random.Random(arguments.seed)
    with tempfile.TemporaryDirectory(prefix="attack-") as temporary:
        bundle = tiny_bundle(Path(temporary) / "tiny")
        is_whole = attack_results(bundle, Path(temporary), arguments.kills, source)
        outcomes = attack_lines(bundle, arguments.count, source)
    print(", ".join(f"{kind}: {count}" for kind, count in sorted(outcomes.items())))
    state = "whole" if is_whole else "not whole"
    print(f"{arguments.kills} pairs of writers killed: the file is {state}")
    return int(outcomes["lost"] > 0 or not is_whole)


if __name__ == "__main__":
    sys.exit(main())
