"""Load `skipdec serve` from one client and measure how long another client waits.

    python scripts/attack/fairness.py
    python scripts/attack/fairness.py --bundle opt-125m-int8 --long 200 --scored 1500

The greedy client has its own API key and requests 64 long texts, then scores of 192 prompts;
meanwhile the other client requests a short text. The bundle is tiny unless one is given. Prints
seconds; the bounds are in decode steps and scored prompts, which a busy machine does not change.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx2
from harness import tiny_bundle
from server import Server, started

_GREEDY, _OTHER = "greedy-client", "other-client"
_TEXTS = 64
_PROMPTS, _PROMPTS_EACH = 192, 64  # prompts to score, in total and per request
_SHORT = 32  # tokens in the short text
_TOKEN = 5  # token of all prompts
_PATIENCE = 120.0  # seconds for the greedy client's requests to reach the engine


@dataclass(frozen=True)
class Wait:
    """Wait of a short text: seconds, decode steps, and texts and prompts that ended."""

    seconds: float
    steps: float
    ended: float

    def __str__(self) -> str:
        return f"{self.seconds:.2f} s, {self.steps:.0f} steps, {self.ended:.0f} others ended"


@dataclass(frozen=True)
class Clients:
    """The two clients of one server."""

    server: Server
    http: httpx2.AsyncClient

    async def ask(self, key: str, **fields: object) -> None:
        """Send a request of token ids and read its complete answer."""
        answer = await self.http.post(
            f"{self.server.address}/v1/completions",
            json={"temperature": 0, "ignore_eos": True, **fields},
            headers={"Authorization": f"Bearer {key}"},
        )
        answer.raise_for_status()

    async def wait_of_short_text(self) -> Wait:
        """Request the other client's text and measure its wait."""
        start, before = time.perf_counter(), self._work()
        await self.ask(_OTHER, prompt=[_TOKEN] * 4, max_tokens=_SHORT)
        seconds, after = time.perf_counter() - start, self._work()
        return Wait(seconds, after[0] - before[0], after[1] - before[1] - 1)

    @asynccontextmanager
    async def busy(self, requests: Sequence[Awaitable[None]]) -> AsyncIterator[None]:
        """Keep the greedy client's ``requests`` running and waiting inside the block."""
        tasks = [asyncio.ensure_future(request) for request in requests]
        ended, until = self._work()[1], time.monotonic() + _PATIENCE
        while self._work()[1] < ended + 2:  # then the first are done and the others have arrived
            assert time.monotonic() < until, "the greedy client's requests do not run"
            await asyncio.sleep(0.01)
        yield
        assert not all(task.done() for task in tasks), "too few requests: nothing had to wait"
        await asyncio.gather(*tasks)

    def _work(self) -> tuple[float, float]:
        """Return the engine's decode steps and ended requests so far."""
        figures = self.server.figures()
        steps = figures['skipdec_steps_total{model="tiny"}']
        return steps, figures['skipdec_requests_total{model="tiny",state="finished"}']


def main() -> int:
    """Print the waits of a short text and whether they are within bounds."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--bundle", type=Path, help="a bundle (default: a new one)")
    parser.add_argument("--long", type=int, default=400, help="tokens in each greedy text")
    parser.add_argument("--scored", type=int, default=1000, help="tokens in each scored prompt")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fairness-") as temporary:
        bundle = arguments.bundle or tiny_bundle(
            Path(temporary) / "tiny", quantize="int8", positions=2048
        )
        keys = Path(temporary) / "keys"
        keys.write_text(f"{_GREEDY}\n{_OTHER}\n")
        with started(bundle, "--api-key-file", str(keys)) as server:
            problems = asyncio.run(_attack(server, arguments.long, arguments.scored))
            if code := server.stop():
                problems.append(f"the server ended with {code}")
    for problem in problems:
        print(problem)
    print(f"2 attacks of a greedy client, {len(problems)} failures")
    return int(bool(problems))


async def _attack(server: Server, long: int, scored: int) -> list[str]:
    async with httpx2.AsyncClient(timeout=None, limits=httpx2.Limits(max_connections=None)) as http:
        clients = Clients(server, http)
        print(f"alone: {await clients.wait_of_short_text()}")
        texts = [clients.ask(_GREEDY, prompt=[_TOKEN] * 8, max_tokens=long) for _ in range(_TEXTS)]
        async with clients.busy(texts):
            beside_texts = await clients.wait_of_short_text()
        print(f"beside {_TEXTS} texts of {long} tokens: {beside_texts}")
        scores = [
            clients.ask(
                _GREEDY,
                prompt=[[_TOKEN] * scored] * _PROMPTS_EACH,
                echo=True,
                logprobs=0,
                max_tokens=0,
            )
            for _ in range(_PROMPTS // _PROMPTS_EACH)
        ]
        async with clients.busy(scores):
            beside_scores = await clients.wait_of_short_text()
        print(f"beside {_PROMPTS} scored prompts of {scored} tokens: {beside_scores}")
    return list(_failures(beside_texts, beside_scores, long))


def _failures(beside_texts: Wait, beside_scores: Wait, long: int) -> Iterator[str]:
    """Yield violations: a slot is free after one long text; a step beside scores takes no time."""
    if beside_texts.steps > 2 * long:
        yield f"a text of {_SHORT} tokens waited {beside_texts.steps:.0f} steps, bound {2 * long}"
    if beside_scores.ended > _SHORT // 2:
        yield f"{beside_scores.ended:.0f} prompts were scored before, bound {_SHORT // 2}"


if __name__ == "__main__":
    raise SystemExit(main())
