"""Load `skipdec serve` for a long time, with a tenth of clients leaving early; check its counters.

    python scripts/attack/soak.py --minutes 30

At the end, every request that the server accepted must have finished or been cancelled, none may
have failed, no cache memory may be reserved, and the process must not have grown. Texts, schedules,
lengths and the tokens at which clients leave are random; the bundle is tiny and int8.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from statistics import mean

from harness import tiny_bundle

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # contains the load generator

from benchmarks.load.arrivals import ClosedLoop, Result
from benchmarks.load.figures import Figures, Objectives
from benchmarks.load.lengths import Lengths
from benchmarks.load.openai import OpenAIClient
from benchmarks.load.requests import drawn, impatient
from processes import anonymous_bytes
from server import Server, started

_SCHEDULES = (None, "full", "2x:horizon=16", "2x:horizon=9,prompt=decay")
_CLIENTS = 16
_LEAVE = 0.1  # share of clients that leave early
_SAMPLES = 200  # of memory
_SETTLED = 5  # minutes before memory is judged
_GROWTH = 1.05  # allowed ratio of the last quarter's mean to the second's


def main() -> int:
    """Print counters and memory, and anything that does not add up."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--draft", default="off", help="what drafts tokens for all texts")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="soak-") as temporary:
        bundle = tiny_bundle(Path(temporary) / "tiny", quantize="int8")
        results, memory, problems = _soaked(bundle, arguments)
    print(Figures.of(results, Objectives()).table())
    print("memory, MiB:", *(f"{size / 2**20:.1f}" for size in memory[:: max(1, len(memory) // 20)]))
    quarter = len(memory) // 4
    if arguments.minutes >= _SETTLED:
        early, late = mean(memory[quarter : 2 * quarter]), mean(memory[3 * quarter :])
        if late > early * _GROWTH:
            problems.append(f"memory grew from {early:.0f} to {late:.0f} bytes")
    print(f"{len(results)} requests in {arguments.minutes:g} minutes, {len(problems)} failures")
    for problem in problems:
        print(problem)
    return int(bool(problems))


def _soaked(
    bundle: Path, arguments: argparse.Namespace
) -> tuple[list[Result], list[int], list[str]]:
    """Return all results, samples of the server's memory in bytes, and problems."""
    with started(bundle, "--allow-schedule", "any", "--draft", arguments.draft) as server:
        results, memory = asyncio.run(_load(server, arguments))
        problems = list(_wrong_books(server, results))
        if code := server.stop():
            problems.append(f"the server ended with {code}")
    return results, memory, problems


def short(draw: random.Random) -> Lengths:
    """Draw requests that fit the 64 positions of a tiny model."""
    return Lengths(draw.randint(1, 24), draw.randint(1, 40))


async def _load(server: Server, arguments: argparse.Namespace) -> tuple[list[Result], list[int]]:
    """Return all results, and samples of the server's memory in bytes."""
    seconds = 60 * arguments.minutes
    end = time.monotonic() + seconds
    requests = drawn(short, seed=arguments.seed, vocab_size=250, schedules=_SCHEDULES)
    in_time = takewhile(
        lambda _: time.monotonic() < end, impatient(requests, _LEAVE, arguments.seed)
    )
    memory: list[int] = []

    async def watch() -> None:
        while True:
            memory.append(anonymous_bytes(server.process.pid))
            await asyncio.sleep(seconds / _SAMPLES)

    watching = asyncio.create_task(watch())
    results = await ClosedLoop(_CLIENTS).send(OpenAIClient(server.address), in_time)
    watching.cancel()
    return results, memory


def _wrong_books(server: Server, results: list[Result]) -> Iterator[str]:
    """Yield counters that do not add up once nothing runs any more."""
    until = time.monotonic() + 60
    while True:
        found = {name.removeprefix("skipdec_"): value for name, value in server.figures().items()}
        running = found['requests_running{model="tiny"}'] + found['requests_waiting{model="tiny"}']
        if not running or time.monotonic() > until:
            break
    states = ("submitted", "finished", "aborted", "failed")
    submitted, finished, aborted, failed = (
        int(found[f'requests_total{{model="tiny",state="{state}"}}']) for state in states
    )
    whole, left = (sum(one.is_whole for one in results), sum(one.left for one in results))
    print(f"submitted {submitted} = finished {finished} + aborted {aborted} + failed {failed}")
    if running:
        yield f"{running:.0f} requests still run or wait"
    if submitted != finished + aborted + failed:
        yield "the counters do not add up"
    if failed or whole + left != len(results):
        yield f"{failed} requests have failed, {len(results) - whole - left} clients saw an error"
    if not whole <= finished <= whole + left:
        yield f"{finished} texts finished; clients got {whole}, and {left} left"
    drafted = int(found['draft_tokens_total{model="tiny"}'])
    right = int(found['accepted_draft_tokens_total{model="tiny"}'])
    passes = int(found['passes_total{model="tiny"}'])
    written = int(found['generation_tokens_total{model="tiny"}'])
    print(f"{passes} passes, {drafted} drafted tokens, {right} right, {written} tokens")
    if right > drafted or not written - submitted <= passes + right <= written:
        yield "passes and drafted tokens do not add up to the tokens written"
    if reserved := found['kv_bytes{kind="reserved",model="tiny"}']:
        yield f"{reserved:.0f} bytes of caches are reserved"


if __name__ == "__main__":
    sys.exit(main())
