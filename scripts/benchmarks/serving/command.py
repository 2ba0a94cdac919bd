"""Time concurrent requests against static batches, a prediction, and a peer.

    python scripts/bench.py serving opt-125m-int8 --requests 96 --slots 8
    python scripts/bench.py serving opt-125m/skipdec-int8 --peer opt-125m/openvino-int8 \\
        --peer-python .venv-peers/bin/python

All requests wait from the start. Lengths are those of a service with a long tail (prompts
lognormal, mean about 128 tokens; texts median 64, up to 512) or short and similar (prompt 37, text
29 ± 9 tokens, as in E2E). Static batches take ``--slots`` requests at a time in order of arrival;
both ways must generate the same tokens. "Predicted" is the scheduler's time over a cost model of
calls, fitted before on the same machine. The peer, OpenVINO GenAI's ContinuousBatchingPipeline on
the same checkpoint, runs at full depth, as it has no other. Ways alternate; ratios are of their
fastest runs. Prints Markdown.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from benchmarks.load.lengths import WORKLOADS
from benchmarks.serving.openvino_peer import OpenVINOPeer, openvino_peer
from benchmarks.serving.prediction import Costs, measured_costs, predicted_seconds
from benchmarks.serving.ways import Requests, best_seconds, running_batch, static_batches
from skipdec import Generator, use_shared_thread_pool
from skipdec.engines.host.processor import available_cores, processor_name

_HEAD = (
    "| lengths | schedule | static batches | running batch | faster | over full depth | "
    "÷ predicted time |"
)


def main() -> None:
    """Print tables of schedules and workloads."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--requests", type=int, default=96)
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--schedules", nargs="+", default=["full", "2x:horizon=64", "4x:horizon=64"]
    )
    parser.add_argument("--threads", type=int, default=available_cores())
    parser.add_argument("--peer", type=Path, help="the same checkpoint, exported for OpenVINO")
    parser.add_argument("--peer-python", type=Path, default=Path(".venv-peers/bin/python"))
    arguments = parser.parse_args()
    use_shared_thread_pool(arguments.threads)
    print(f"{arguments.bundle.name}, {arguments.slots} slots, {arguments.requests} requests,")
    print(f"{arguments.threads} threads of {processor_name()}; tokens per second\n")
    with Generator.open(
        arguments.bundle, max_batch_size=arguments.slots, weights="copied"
    ) as generator:
        if arguments.peer is None:
            _print_all(_against_static_batches(generator, arguments))
        else:
            _print_all(_against_the_peer(generator, arguments))


def _against_static_batches(generator: Generator, arguments: argparse.Namespace) -> Iterator[str]:
    costs = measured_costs(generator, arguments.slots)
    yield _described(costs)
    yield f"{_HEAD}\n{'|---' * 7}|"
    for workload in WORKLOADS:
        requests = Requests.drawn(workload, arguments.requests, generator.model.vocab_size)
        full = 0.0
        for schedule in arguments.schedules:
            ways = (
                partial(static_batches, generator, requests, schedule, arguments.slots),
                partial(running_batch, generator, requests, schedule),
            )
            static, running = best_seconds(ways, arguments.rounds)
            full = full or running
            resolved = generator.resolve_schedule(schedule, max_tokens=64)
            predicted = predicted_seconds(costs, requests, resolved, arguments.slots)
            tokens = requests.num_tokens
            yield (
                f"| {workload} | `{schedule}` | {tokens / static:.0f} | {tokens / running:.0f} | "
                f"{static / running:.2f}× | {full / running:.2f}× | {running / predicted:.2f} |"
            )


def _against_the_peer(generator: Generator, arguments: argparse.Namespace) -> Iterator[str]:
    schedules = arguments.schedules
    yield f"| lengths | OpenVINO GenAI | {' | '.join(f'`{each}`' for each in schedules)} |"
    yield f"{'|---' * (2 + len(schedules))}|"
    with ExitStack() as stack:
        peer = stack.enter_context(
            openvino_peer(arguments.peer_python, arguments.peer, arguments.slots, arguments.threads)
        )
        for workload in WORKLOADS:
            requests = Requests.drawn(workload, arguments.requests, generator.model.vocab_size)
            theirs, ours = _in_turn(generator, peer, requests, schedules, arguments.rounds)
            cells = [
                f"{requests.num_tokens / seconds:.0f} ({theirs / seconds:.2f}×)" for seconds in ours
            ]
            yield f"| {workload} | {requests.num_tokens / theirs:.0f} | {' | '.join(cells)} |"


def _in_turn(
    generator: Generator,
    peer: OpenVINOPeer,
    requests: Requests,
    schedules: list[str],
    rounds: int,
) -> tuple[float, list[float]]:
    """Return the fastest seconds of the peer and of each schedule; all generate equally many
    tokens.
    """
    theirs, ours = float("inf"), [float("inf")] * len(schedules)
    for _ in range(rounds):
        seconds, texts = peer.run(requests)
        theirs = min(theirs, seconds)
        assert [len(text) for text in texts] == [each.max_tokens for each in requests.requests]
        for place, schedule in enumerate(schedules):
            way = partial(running_batch, generator, requests, schedule)
            ours[place] = min(ours[place], *best_seconds((way,), 1))
    return theirs, ours


def _described(costs: Costs) -> str:
    milliseconds = {name: 1000 * value for name, value in vars(costs).items()}
    return (
        "A step: {ends:.3f} + {ends_row:.3f} per row + {weights:.3f} per layer read + "
        "{row:.4f} per row and layer; a prompt call: {prompt:.2f} + {token:.3f} per token, ms.\n"
    ).format(**milliseconds)


def _print_all(lines: Iterator[str]) -> None:
    for line in lines:
        print(line, flush=True)
