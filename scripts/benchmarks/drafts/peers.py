"""Continue prompts with drafts and without, beside transformers and OpenVINO GenAI.

    python scripts/bench.py drafts peers dev.csv --model examples/restaurants \\
        --work /tmp/drafts --limit 100

Every way runs in a process of its own, one prompt at a time, greedily, and ways take turns every
few prompts. Each round starts all processes anew, so tables of n-grams begin empty. skipdec runs
int8 weights, OpenVINO GenAI its int8 export, both from the same checkpoint; transformers runs
float32. So a draft is held against the same engine without drafts: whether the texts are equal,
tokens per pass, and the ratio of seconds over all prompts, prompts included. Times count only on a
quiet machine, and so do the tokens per pass of drafts that adapt: the policy measures passes, too.
Texts, and drafts with ``adapt=no``, do not depend on it. The first run makes the peers'
environment, as for ``bench.py peers``; ``--without-peers`` needs none.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pages.drafts import FIGURES, PAGE, draw, peers_table
from tokenizers import Tokenizer

from benchmarks.drafts import texts
from benchmarks.drafts.ways import (
    OPENVINO,
    PEERS,
    Answers,
    Way,
    Worker,
    own_python,
    own_ways,
    started,
)
from benchmarks.peers.environment import MODELS, Environment, write_checkpoint
from benchmarks.record import ROOT, Record

DRAFTS = ("own", "lookup")
RANDOM = "random"
_RANDOM_PROMPT = 64  # tokens
_TURN = 10  # prompts that a way continues before it is another's turn
_WARMING = [2, 300, 301, 302, 303, 304, 305, 306]  # token ids that no text has in this order


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `run`."""
    parser.add_argument(
        "data", type=Path, help=f".jsonl of `texts`, E2E's .csv, or {RANDOM}: tokens by chance"
    )
    parser.add_argument(
        "--model",
        type=Path,
        required=True,
        help=f"a checkpoint of OPT, or {', '.join(MODELS)}: random weights",
    )
    parser.add_argument("--work", type=Path, required=True, help="keeps bundle and conversion")
    parser.add_argument("--limit", type=int, default=100, help="prompts")
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--drafts", nargs="+", default=DRAFTS)
    parser.add_argument("--without-peers", action="store_true")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--busy", action="store_true", help="leave times out of the tables: others run beside"
    )
    parser.add_argument("--environment", type=Path, default=ROOT / ".venv-peers")
    parser.add_argument("--name", help="keep the figures under this name, and draw the page")


def run(arguments: argparse.Namespace) -> None:
    """Run all rounds; print a table."""
    environment = Environment(arguments.environment)
    peers = () if arguments.without_peers else PEERS
    ways = (*own_ways(arguments.drafts), *peers)
    model = checkpoint(arguments.model, arguments.work)
    requests = list(requests_of(arguments, model))
    directories = {"skipdec": bundle(model, arguments.work)}
    if peers:
        environment.prepare()
        converted = openvino_model(environment, model, arguments.work)
        directories |= {"transformers": model, OPENVINO: converted}
    rounds = [
        one_round(ways, directories, environment, requests, arguments.threads)
        for _ in range(arguments.rounds)
    ]
    part = {
        "kind": "peers",
        "model": arguments.model.name,
        "data": arguments.data.stem,
        "prompts": sum(len(request["prompts"]) for request in requests),
        "max_tokens": arguments.max_tokens,
        "threads": arguments.threads,
        "busy": arguments.busy,
        "ways": compared(ways, rounds),
    }
    print("\n".join(peers_table(part)))
    if arguments.name:
        packages = ("skipdec", "onnxruntime", "transformers", "torch")
        versions = {package: version(package) for package in packages}
        if peers:
            versions["openvino-genai"] = environment.versions()["openvino-genai"]
        Record.here(FIGURES).add(arguments.name, part, versions)
        draw(FIGURES, PAGE)


def requests_of(arguments: argparse.Namespace, model: Path) -> Iterator[dict[str, Any]]:
    """Yield requests of a few prompts each, without prompts that are too long for the model."""
    config = json.loads((model / "config.json").read_text())
    if str(arguments.data) == RANDOM:
        draw = random.Random(0)
        count, ids = arguments.limit, range(4, config["vocab_size"])
        found = [draw.choices(ids, k=_RANDOM_PROMPT) for _ in range(count)]
    else:
        tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
        data = texts.tokenised(arguments.data, tokenizer, arguments.limit)
        longest = config["max_position_embeddings"] - arguments.max_tokens
        found = [list(text.prompt) for text in data.texts if len(text.prompt) <= longest]
    for start in range(0, len(found), _TURN):
        yield {
            "prompts": found[start : start + _TURN],
            "max_tokens": arguments.max_tokens,
            "eos": config["eos_token_id"],
        }


def checkpoint(model: Path, work: Path) -> Path:
    """Return a checkpoint's directory, writing one of random weights for the name of a size."""
    if model.is_dir():
        return model
    if str(model) not in MODELS:
        raise SystemExit(f"--model is {model}; allowed: a directory, {', '.join(MODELS)}")
    directory = work / model
    if not directory.exists():
        write_checkpoint(MODELS[str(model)], directory)
    return directory


def one_round(
    ways: Sequence[Way],
    directories: Mapping[str, Path],
    environment: Environment,
    requests: Sequence[Mapping[str, Any]],
    threads: int,
) -> dict[str, Answers]:
    """Start all processes and let the ways take turns; return the answers by name."""
    answers = {way.name: Answers() for way in ways}
    with ExitStack() as stack:
        workers: dict[str, Worker] = {}
        for way in ways:
            if way.process not in workers:
                python = environment.python if way.engine == OPENVINO else own_python()
                worker = started(python, way, directories[way.engine], threads)
                workers[way.process] = stack.enter_context(worker)
            first = {**requests[0], "prompts": [_WARMING], "options": way.options}
            workers[way.process].ask(first)
        for number, request in enumerate(requests, start=1):
            for way in ways:
                found = workers[way.process].ask({**request, "options": way.options})
                answers[way.name].add(found)
            print(f"turn {number} of {len(requests)}", file=sys.stderr)
    return answers


def compared(
    ways: Sequence[Way], rounds: Sequence[Mapping[str, Answers]]
) -> dict[str, dict[str, Any]]:
    """Return the figures of each way, held against its engine without drafts.

    ``tokens_per_pass`` is None where the engine does not tell; ``gains`` has one ratio per round.
    """
    found = {}
    for way in ways:
        first, plain = rounds[0][way.name], rounds[0][way.plain]
        ours = rounds[0][ways[0].name]
        tokens = sum(map(len, first.texts))
        passes = [count for count in first.passes if count is not None]
        written = tokens - len(first.texts)  # by passes; the first token comes with the prompt
        found[way.name] = {
            "equal": _equal(first.texts, plain.texts),
            "equal_to_ours": _equal(first.texts, ours.texts),
            "tokens": tokens,
            "tokens_per_pass": round(written / sum(passes), 3) if sum(passes) else None,
            "milliseconds_per_token": [
                round(1000 * sum(each[way.name].seconds) / tokens, 4) for each in rounds
            ],
            "gains": [
                round(sum(each[way.plain].seconds) / sum(each[way.name].seconds), 3)
                for each in rounds
            ],
        }
    return found


def _equal(some: Sequence[Sequence[int]], others: Sequence[Sequence[int]]) -> int:
    return sum(list(one) == list(other) for one, other in zip(some, others, strict=True))


def bundle(model: Path, work: Path) -> Path:
    """Return the int8 bundle of a checkpoint, exported if ``work`` has none."""
    output = work / f"{model.name}-skipdec"
    if output.exists():
        return output
    export = Path(sys.executable).parent / "skipdec-export"
    options = ("-q", "--no-verify", "--quantize", "int8", "-o", output)
    subprocess.run([export, model, *options], check=True, stdout=sys.stderr)
    return output


def openvino_model(environment: Environment, model: Path, work: Path) -> Path:
    """Return OpenVINO's int8 export of a checkpoint, made once."""
    output = work / f"{model.name}-openvino"
    if not (output / "openvino_model.xml").exists():
        command: list[str | Path] = [environment.path / "bin/optimum-cli", "export", "openvino"]
        command += ["--model", model, "--task", "text-generation-with-past"]
        subprocess.run([*command, "--weight-format", "int8", output], check=True, stdout=sys.stderr)
    return output
