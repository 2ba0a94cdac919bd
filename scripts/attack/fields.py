"""Send each field of completions and chats at its limits and beyond, and time the server.

    python scripts/attack/fields.py
    python scripts/attack/fields.py --count 100

Whatever a request contains, its answer must be neither a 500 nor overlong, and no callback of the
server's event loop may take more than 5 ms of processor time. The time is measured on the loop's
own thread, which other programs hardly affect; the best of five tries counts. Like Llama 3's, the
tokenizer has 256 special tokens, which long messages spell, begin and repeat. Meanwhile
/health/live is polled; its longest gap is printed and must stay below a generous bound.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import put_chat, timed_callbacks, tiny_bundle
from server import Server, repeated

from skipdec.runtime.serving.http.protocol import CompletionRequest

_MAX_CPU = 0.005  # maximum seconds of the event loop's thread in one callback
_MAX_GAP = 0.5  # maximum seconds between two answers of /health/live
_TRIES = 5  # per case
_MAX_ANSWER = 16 << 10  # maximum bytes of a refusal
_SHOWN = 5  # most expensive cases to print
_TIMEOUT = 60.0  # seconds to wait for the server's times
_MIB = (1 << 20) - 200  # bytes of a field in a body of 1 MiB


@dataclass(frozen=True)
class Case:
    """A named request: body and path."""

    name: str
    body: bytes
    path: str = "/v1/completions"
    method: str = "POST"
    headers: int = 0


@dataclass
class Cost:
    """Minima over several tries of a case, in seconds, and the answer."""

    cpu: float = float("inf")  # the longest callback
    gap: float = float("inf")  # between two answers of /health/live
    status: int = 0
    length: int = 0

    def add(self, cpu: float, gap: float, status: int, length: int) -> None:
        """Record the figures of another try."""
        self.cpu, self.gap = min(self.cpu, cpu), min(self.gap, gap)
        self.status, self.length = status, max(self.length, length)


def cases(seed: int) -> Iterator[Case]:
    """Return all cases: each is valid except for the attacked field."""
    for field, values in _values(random.Random(seed)).items():
        for name, value in values.items():
            document = {"prompt": "a", "max_tokens": 1} | {field: value}
            yield Case(f"{field}: {name}", json.dumps(document).encode())
    for field in ("prompt", "stop", "seed", "unknown"):
        for name, raw in _RAW.items():
            yield Case(
                f"{field}: {name}",
                b'{"prompt": "a", "max_tokens": 1, "%s": %s}' % (field.encode(), raw),
            )
    for name, messages in _chats().items():
        document = {"messages": messages, "max_tokens": 1}
        yield Case(f"chat: {name}", json.dumps(document).encode(), "/v1/chat/completions")
    yield Case("many unknown fields", _object(60_000))
    yield Case("few unknown fields", _object(10_000))
    yield Case("names of 1 MiB", b'{"' + b"n" * _MIB + b'": 1}')
    yield Case("the same name", b"{" + b'"n":1,' * (_MIB // 6) + b'"n":1}')
    yield Case("no JSON", b"\xff" * _MIB)
    yield Case("only brackets", b"[" * _MIB)
    yield Case("1,000 headers", b"{}", headers=1_000)
    yield Case("a long path", b"", "/v1/models/" + "%0a" * 9_000, "GET")
    yield Case("a long unknown path", b"", "/" + "a/" * 14_000, "GET")


def _values(source: random.Random) -> dict[str, dict[str, Any]]:
    numbers: dict[str, Any] = {
        str(number)[:20]: number for number in (0, -1, 2**31, 2**64 + 1, 0.5, 1e300, 10**4000)
    }
    texts: dict[str, Any] = {
        "1 MiB": "x" * _MIB,
        "line ends": "\n" * (_MIB // 2),
        "one": "é",
        "long": "ab " * 600,
    }
    lists: dict[str, Any] = {
        "200,000 numbers": list(range(200_000)),
        "200,000 of -1": [-1] * 200_000,
        "10,000 texts": ["x"] * 10_000,
        "10,000 empty texts": [""] * 10_000,
        "1,000 lists": [[1]] * 1_000,
        "mixed": [1, "a", None, [], {}] * 200,
        "nested": json.loads("[" * 90 + "]" * 90),
        "an object": {str(number): number for number in range(5_000)},
    }
    schedules: dict[str, Any] = {
        "long horizon": "2x:horizon=1048576",
        "horizon of digits": "2x:horizon=" + "9" * 480,
        "digits": "9" * 490 + "x",
        "options": "2x:" + "a," * 240,
        "table": "table:table=" + "/".join(["4", "2"] * 120),
        "d3": "d3:max=4,min=1,alpha=0.99999999999",
        "d3 of digits": "d3:min=1,alpha=0.5,max=1" + "0" * 400,
        "spread": "cosine:max=4,min=2,horizon=64,placement=unified-nested,prompt=decay",
        "a file": "/dev/zero.json",
        "forged": "x\r\n12:00:01 info",
    }
    ids = [[source.randrange(4, 250) for _ in range(63)] for _ in range(64)]
    prompts: dict[str, Any] = {
        "64 of 63 ids": ids,
        "64 texts": ["ab" * 30] * 64,
        "64 long texts": ["ab " * 5_000] * 64,
    }
    odd = numbers | texts | lists
    fields = (*CompletionRequest.model_fields, "suffix")
    extra = {"schedule": schedules, "prompt": prompts}
    return {field: odd | extra.get(field, {}) for field in fields}


def _chats() -> dict[str, Any]:
    def user(content: Any) -> dict[str, Any]:  # noqa: ANN401
        return {"role": "user", "content": content}

    def filled(text: str) -> str:
        return text * (_MIB // len(json.dumps(text)))

    turns = [user("a"), {"role": "assistant", "content": "b"}] * 250
    return {
        **{f"a message of {text!r}": [user(filled(text))] for text in _FILLINGS},
        "all special tokens": [user(filled("".join(_SPECIAL)))],
        "begun special tokens": [user(filled("".join(text[:-1] for text in _SPECIAL)))],
        "500 messages": [*turns, user("a")],
        "500 messages of special tokens": [user(_SPECIAL[7] * 30)] * 500,
        "1,000 text parts": [user([{"type": "text", "text": "<s>"}] * 1_000)],
        "nested": [user(json.loads("[" * 90 + "]" * 90))],
        "no messages": [],
        "an object": user("a"),
        "continued": [*turns, {"role": "assistant", "content": "x" * 100_000}],
    }


_SPECIAL = [f"<|reserved_special_token_{number}|>" for number in range(256)]
_FILLINGS = (
    "<|",
    "<",
    "x",
    "é",
    "\n",
    "<s>",
    "\ufdd0",
    "\U0001f600",
    _SPECIAL[0],
    _SPECIAL[0][:-1],
)
_TEMPLATE = "{% for m in messages %}<s>{{ m.role }}: {{ m.content | trim }}</s>{% endfor %}"
_RAW = {  # JSON that no Python value represents
    "NaN": b"NaN",
    "-Infinity": b"-Infinity",
    "1e999": b"1e999",
    "5,000 digits": b"9" * 5_000,
    "bad UTF-8": b'"\xff\xfe"',
    "half a pair": b'"\\ud800"',
    "escapes": b'"' + b"\\u1234" * (_MIB // 6) + b'"',
    "quotes": b'"' + b'\\"' * (_MIB // 2) + b'"',
    "backslashes": b'"' + b"\\\\" * (_MIB // 2) + b'"',
    "empty lists": b"[" + b"[]," * (_MIB // 3 - 1) + b"[]]",
    "empty objects": b"[" + b"{}," * (_MIB // 3 - 1) + b"{}]",
    "empty texts": b"[" + b'"",' * (_MIB // 3 - 1) + b'""]',
    "digits": b"[" + b"1," * (_MIB // 2 - 1) + b"1]",
    "floats": b"[" + b"1e9," * (_MIB // 4 - 1) + b"1]",
    "long numbers": b"[" + (b"9" * 4_299 + b",") * (_MIB // 4_300 - 1) + b"1]",
    "nulls": b"[" + b"null," * (_MIB // 5 - 1) + b"1]",
    "deep": b"[" * 100_000 + b"]" * 100_000,
}


def _object(names: int) -> bytes:
    return json.dumps({"prompt": "a"} | {f"unknown{name}": 1 for name in range(names)}).encode()


class TimedServer(Server):
    """``skipdec serve`` whose event loop times its callbacks."""

    def __init__(self, bundle: Path, directory: Path) -> None:
        self._times = directory / "times"
        super().__init__([sys.executable, __file__, "--serve", str(self._times), str(bundle)])

    def longest(self) -> float:
        """Return the processor time of the longest callback since the last call, in seconds."""
        self._times.unlink(missing_ok=True)
        self.process.send_signal(signal.SIGUSR1)
        until = time.monotonic() + _TIMEOUT
        while not self._times.exists():
            if time.monotonic() > until or self.process.poll() is not None:
                raise RuntimeError("the server does not report its times")
            time.sleep(0.002)
        return float(self._times.read_text())


def serve(times: Path, bundle: str) -> None:
    """Run the command with an event loop that times callbacks and writes the longest on SIGUSR1."""
    from skipdec.cli import main

    def tell(*_: object) -> None:
        partial = times.with_suffix(".partial")
        partial.write_text(str(longest.take()))
        partial.rename(times)

    signal.signal(signal.SIGUSR1, tell)
    sys.argv = ["skipdec", "serve", f"tiny={bundle}", "--port", "0", "--threads", "1"]
    sys.argv += ["--log-format", "json", "--allow-schedule", "any"]
    with timed_callbacks() as longest:
        main()


def _attacked(server: TimedServer, case: Case) -> Cost:
    cost = Cost()
    for _ in range(_TRIES):
        server.longest()
        headers = {f"h{number}": "" for number in range(case.headers)}
        with repeated(lambda: server.ask("/health/live")) as polls:
            status, answer = server.send(case.method, case.path, case.body, headers)
        gap = max(waited for _, waited in polls)
        cost.add(server.longest(), gap, status, len(answer))
        if cost.cpu <= _MAX_CPU / 2:
            break
    return cost


def _problems(cost: Cost) -> Iterator[str]:
    if cost.status == 0 or cost.status >= 500:
        yield f"answered {cost.status}"
    if cost.status >= 400 and cost.length > _MAX_ANSWER:
        yield f"refused in {cost.length:,} bytes"
    if cost.cpu > _MAX_CPU:
        yield f"{cost.cpu * 1e3:.1f} ms of the event loop"
    if cost.gap > _MAX_GAP:
        yield f"/health/live waited {cost.gap * 1e3:.0f} ms"


def main() -> int:
    """Print the most expensive cases and those that violate a bound."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--count", type=int, help="number of random cases (default: all)")
    parser.add_argument("--only", default="", help="cases whose name contains this text")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    chosen = [case for case in cases(arguments.seed) if arguments.only in case.name]
    if arguments.count is not None:
        source = random.Random(arguments.seed)
        chosen = source.sample(chosen, min(arguments.count, len(chosen)))
    costs: dict[str, Cost] = {}
    with tempfile.TemporaryDirectory(prefix="fields-") as temporary:
        bundle = tiny_bundle(Path(temporary) / "tiny", vocab_size=272 + len(_SPECIAL))
        put_chat(bundle, _TEMPLATE, _SPECIAL)
        server = TimedServer(bundle, Path(temporary))
        try:
            for case in chosen:
                costs[case.name] = _attacked(server, case)
        finally:
            server.stop()
    failures = 0
    for index, (name, cost) in enumerate(sorted(costs.items(), key=lambda item: -item[1].cpu)):
        problems = list(_problems(cost))
        failures += bool(problems)
        if problems or index < _SHOWN:
            found = "; ".join(problems) or "fine"
            print(f"{name}: {cost.cpu * 1e3:.1f} ms, /health/live {cost.gap * 1e3:.0f} ms: {found}")
    dearest = max(costs.values(), key=lambda cost: cost.cpu)
    print(
        f"{len(costs)} cases, {failures} failures; event loop {dearest.cpu * 1e3:.1f} ms at "
        f"most, /health/live {max(cost.gap for cost in costs.values()) * 1e3:.0f} ms at most"
    )
    return int(failures > 0)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve(Path(sys.argv[2]), sys.argv[3])
    else:
        sys.exit(main())
