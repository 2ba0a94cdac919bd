"""Send requests to a server, Triton or an engine, and print their clients' view.

    python scripts/bench.py load openai http://127.0.0.1:8000 --lengths tail --clients 16
    python scripts/bench.py load triton 127.0.0.1:8001 --model opt-125m --rate 2
    python scripts/bench.py load engine opt-125m-int8 --schedule 4x --slots 8

Closed loop: ``--clients`` clients, each of which sends its next request when its last one has ended
(twice the slots saturate a server). Open loop: ``--rate`` requests per second as a Poisson process;
times count from when a request was due. Prompts are random token ids of ``--lengths``, or come from
``--file``, with lines as in ``skipdec generate --input``: {"prompt": …, "max_tokens": …}. Texts are
greedy unless a line says otherwise, and always have max_tokens (16) tokens.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import fields
from itertools import islice
from pathlib import Path

from benchmarks.load.arrivals import ClosedLoop, Poisson
from benchmarks.load.client import Client
from benchmarks.load.figures import Figures, Objectives
from benchmarks.load.lengths import WORKLOADS
from benchmarks.load.requests import LoadRequest, drawn, impatient, read
from benchmarks.machine import Machine
from skipdec.engines.errors import SkipDecError, UsageError
from skipdec.engines.host.processor import available_cores


@asynccontextmanager
async def openai_client(arguments: argparse.Namespace) -> AsyncIterator[Client]:
    """Connect to a server of OpenAI's protocol; its key comes from the environment."""
    from benchmarks.load.openai import OpenAIClient

    key = os.environ.get("OPENAI_API_KEY")
    yield OpenAIClient(arguments.target, model=arguments.model, key=key)


@asynccontextmanager
async def triton_client(arguments: argparse.Namespace) -> AsyncIterator[Client]:
    """Connect to a model of a Triton server, over gRPC."""
    from benchmarks.load.triton import TritonClient

    if arguments.model is None:
        raise UsageError("--model", "is missing; name the model of the Triton server")
    client = TritonClient(arguments.target, model=arguments.model)
    try:
        yield client
    finally:
        await client.close()


@asynccontextmanager
async def engine_client(arguments: argparse.Namespace) -> AsyncIterator[Client]:
    """Open a bundle in this process with one thread pool, as `skipdec serve` does."""
    from benchmarks.load.engine import EngineClient
    from skipdec import AsyncEngine, use_shared_thread_pool

    use_shared_thread_pool(arguments.threads)
    async with AsyncEngine.open(
        arguments.target, max_batch_size=arguments.slots, max_waiting=arguments.max_waiting
    ) as engine:
        yield EngineClient(engine)


OBJECTIVES = tuple(field.name for field in fields(Objectives))
BACKENDS: dict[str, Callable[[argparse.Namespace], AbstractAsyncContextManager[Client]]] = {
    "openai": openai_client,
    "triton": triton_client,
    "engine": engine_client,
}


def main() -> int:
    """Print a table, and write the figures if ``--json`` names a file."""
    arguments = _parser().parse_args()
    try:
        figures = asyncio.run(_load(arguments))
    except SkipDecError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(figures.table())
    if arguments.json is not None:
        asked = {name: str(value) for name, value in vars(arguments).items()}
        document = {"machine": Machine.here().document(), "asked": asked, **figures.document()}
        arguments.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return int(bool(figures.errors))


async def _load(arguments: argparse.Namespace) -> Figures:
    if arguments.file is not None:
        requests = read(arguments.file, arguments.schedule)
    else:
        requests = drawn(
            WORKLOADS[arguments.lengths],
            seed=arguments.seed,
            vocab_size=arguments.vocab_size,
            schedules=[arguments.schedule],
        )
    if arguments.leave:
        requests = impatient(requests, arguments.leave, arguments.seed)
    listed = list(islice(requests, arguments.requests))
    arrivals: ClosedLoop | Poisson = ClosedLoop(arguments.clients)
    if arguments.rate is not None:
        arrivals = Poisson(arguments.rate, arguments.seed)
    async with BACKENDS[arguments.backend](arguments) as client:
        for _ in range(arguments.warmup):
            await ClosedLoop(1).send(client, iter([LoadRequest(listed[0].prompt, 2)]))
        results = await arrivals.send(client, iter(listed))
    return Figures.of(results, Objectives(**dict(arguments.slo)))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("backend", choices=BACKENDS)
    parser.add_argument("target", help="http://HOST:PORT, HOST:PORT of gRPC, or a bundle")
    parser.add_argument("--model", help="its name in the server")
    parser.add_argument("--schedule", help="of all requests (default: the server's own)")
    parser.add_argument("--lengths", choices=WORKLOADS, default="tail")
    parser.add_argument("--file", type=Path, help="JSON lines, instead of --lengths")
    parser.add_argument("--requests", type=_at_least_one, default=96)
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--clients", type=_at_least_one, default=16, help="closed loop")
    how.add_argument("--rate", type=_positive, help="open loop: requests per second")
    parser.add_argument(
        "--leave", type=float, default=0.0, help="share of clients that leave early"
    )
    parser.add_argument("--warmup", type=int, default=1, help="requests sent before measuring")
    parser.add_argument("--slo", nargs="+", type=_objective, default=[], metavar="NAME:MS",
                        help=f"limits: {', '.join(OBJECTIVES)}; gap: the mean")  # fmt: skip
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--vocab-size", type=int, default=1000, help="bound of prompt ids")
    parser.add_argument("--json", type=Path, help="file for the figures")
    parser.add_argument("--slots", type=int, default=8, help="engine: rows at once")
    parser.add_argument("--threads", type=int, default=available_cores(), help="engine")
    parser.add_argument("--max-waiting", type=int, default=256, help="engine")
    return parser


def _objective(text: str) -> tuple[str, float]:
    name, _, value = text.partition(":")
    if name not in OBJECTIVES:
        raise argparse.ArgumentTypeError(f"{text!r}; allowed: {', '.join(OBJECTIVES)}, then :MS")
    return name, _positive(value)


def _at_least_one(text: str) -> int:
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{text}; allowed: 1 or more")
    return number


def _positive(text: str) -> float:
    if not (number := float(text)) > 0:
        raise argparse.ArgumentTypeError(f"{text}; allowed: more than 0")
    return number
