"""int8 at full depth against CTranslate2 and OpenVINO: same checkpoint, threads and prompts.

    python scripts/bench_peers.py --output docs/benchmarks/peers.md

Each engine runs in a process of its own (bench/peers_worker.py), one at a time, in turn; a ratio
is taken within a round and the median over the rounds is printed. The peers get an environment of
their own, .venv-peers, from bench/peers-constraints.txt. Weights are random (seeded) at real sizes.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import median
from time import sleep

from skipdec.engines.host.console import markdown_table

SCRIPTS = Path(__file__).resolve().parent
PEERS = SCRIPTS.parent / ".venv-peers"
CONSTRAINTS = SCRIPTS / "bench" / "peers-constraints.txt"
PEER_PACKAGES = ("ctranslate2", "openvino", "optimum-intel")
PROMPT, SHORT, LONG = 32, 8, 72  # tokens; decoding is timed as the difference of two lengths
SETTLE_SECONDS = 0.5
_HEADINGS = ("model", "measured", "skipdec", "CTranslate2", "ratio", "OpenVINO", "ratio")

# Hugging Face's names; what is not given is opt-125m's.
MODELS: dict[str, dict[str, int]] = {
    "tiny": {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "ffn_dim": 256},
    "opt-125m": {},
    "opt-1.3b": {
        "num_hidden_layers": 24,
        "hidden_size": 2048,
        "num_attention_heads": 32,
        "ffn_dim": 8192,
    },
}


@dataclass(frozen=True)
class Cell:
    """One thing that is timed, and the ratios that we aim for: (CTranslate2, OpenVINO)."""

    name: str
    batch: int
    goals: dict[str, tuple[float, float]]
    prompt: int = PROMPT
    decodes: bool = True

    def milliseconds(self, worker: Worker) -> float:
        """Per decode step of the whole batch, or for the prompt and its first token."""
        if not self.decodes:
            return 1000 * worker.seconds(self.batch, self.prompt, 1)
        long = worker.seconds(self.batch, self.prompt, LONG)
        short = worker.seconds(self.batch, self.prompt, SHORT)
        return 1000 * (long - short) / (LONG - SHORT)


CELLS = (
    Cell("decode, batch 1, ms/step", 1, {"opt-125m": (2.5, 2.5), "opt-1.3b": (1.4, 1.4)}),
    Cell("decode, batch 8, ms/step", 8, {"opt-125m": (1.8, 1.8), "opt-1.3b": (1.2, 1.2)}),
    Cell(
        "prompt of 512 tokens, ms",
        1,
        {"opt-125m": (0.9, 1.3), "opt-1.3b": (0.9, 1.3)},
        prompt=512,
        decodes=False,
    ),
)


class Worker:
    """The process of one engine; idle between requests."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def seconds(self, batch: int, prompt: int, generate: int) -> float:
        """Time one call, once the threads of the engine before have stopped spinning."""
        sleep(SETTLE_SECONDS)
        request = {"batch": batch, "prompt": prompt, "generate": generate}
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return float(self.answer())

    def answer(self) -> str:
        """The next line; exits, with the worker's own words on stderr, if there is none."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            sys.exit(f"a worker stopped: {self._process.args!r}")
        return line


@contextmanager
def worker(python: Path | str, engine: str, directory: Path, threads: int) -> Iterator[Worker]:
    """Start an engine's process and stop it at the end."""
    command: list[str | Path] = [
        python,
        SCRIPTS / "bench" / "peers_worker.py",
        engine,
        directory,
        str(threads),
    ]
    environment = os.environ | {
        "OMP_NUM_THREADS": str(threads),
        "HF_HUB_OFFLINE": "1",
        "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",  # huge pages for each engine alike
    }
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        started = Worker(process)
        started.answer()
        yield started


def prepare_environment() -> None:
    """Make .venv-peers unless it was made from the same list."""
    stamp = PEERS / "stamp"
    wanted = hashlib.sha256(CONSTRAINTS.read_bytes()).hexdigest()
    if stamp.exists() and stamp.read_text() == wanted:
        return
    subprocess.run([sys.executable, "-m", "venv", "--clear", PEERS], check=True)
    pip: list[str | Path] = [PEERS / "bin/python", "-m", "pip"]
    install = [*pip, "install", "--quiet", "--constraint", CONSTRAINTS]
    torch = next(line for line in CONSTRAINTS.read_text().split() if line.startswith("torch=="))
    subprocess.run([*install, "setuptools", torch], check=True)  # first: the CPU build, if any
    subprocess.run([*install, *PEER_PACKAGES], check=True)
    # optimum-intel asks for it, nothing here uses it, and its build may not match torch's
    subprocess.run([*pip, "uninstall", "--quiet", "--yes", "torchvision"], check=True)
    stamp.write_text(wanted)


def write_checkpoint(name: str, directory: Path) -> None:
    """A seeded random model in float16, as OPT's own are, with one word per token id."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import OPTConfig, OPTForCausalLM, PreTrainedTokenizerFast

    torch.manual_seed(0)
    config = OPTConfig(**MODELS[name])
    OPTForCausalLM(config).half().save_pretrained(directory)
    words = {f"t{index}": index for index in range(config.vocab_size)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="t3"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="t2", eos_token="t2", unk_token="t3", pad_token="t1"
    ).save_pretrained(directory)


def prepare_model(name: str, directory: Path) -> dict[str, Path]:
    """Write the checkpoint and let every engine's own tool convert it to int8; the peers' once."""
    checkpoint = directory / "checkpoint"
    outputs = {name: directory / name for name in ("skipdec", "ctranslate2", "openvino")}
    if not (checkpoint / "tokenizer.json").exists():
        write_checkpoint(name, checkpoint)
    commands: dict[str, list[str | Path]] = {
        "skipdec": [
            *(Path(sys.executable).parent / "skipdec-export", checkpoint, "--quantize", "int8"),
            *("--no-verify", "--force", "-o", outputs["skipdec"]),
        ],
        "ctranslate2": [
            *(PEERS / "bin/ct2-transformers-converter", "--model", checkpoint),
            *("--quantization", "int8", "--force", "--output_dir", outputs["ctranslate2"]),
        ],
        "openvino": [
            *(PEERS / "bin/optimum-cli", "export", "openvino", "--model", checkpoint),
            *("--task", "text-generation-with-past", "--weight-format", "int8"),
            outputs["openvino"],
        ],
    }
    for engine, command in commands.items():
        done = directory / f"{engine}.done"
        if engine == "skipdec" or not done.exists():  # ours: as the working tree exports today
            subprocess.run(command, check=True, stdout=sys.stderr)
            done.touch()
    return outputs


def measure(
    directories: dict[str, Path], threads: int, rounds: int
) -> dict[str, list[dict[str, float]]]:
    """Milliseconds by cell, round and engine; the first round, a warm-up, is dropped."""
    results: dict[str, list[dict[str, float]]] = {}
    with ExitStack() as stack:
        workers = {}
        for engine, directory in directories.items():
            python = sys.executable if engine == "skipdec" else PEERS / "bin/python"
            workers[engine] = stack.enter_context(worker(python, engine, directory, threads))
        for cell in CELLS:
            timings = [
                {engine: cell.milliseconds(running) for engine, running in workers.items()}
                for _ in range(rounds + 1)
            ]
            results[cell.name] = timings[1:]
    return results


def table_row(model: str, cell: Cell, rounds: list[dict[str, float]]) -> list[str]:
    """Median milliseconds, and per peer the median ratio: above 1, skipdec is faster."""
    columns = [model, cell.name, f"{median(timing['skipdec'] for timing in rounds):.1f}"]
    for peer, goal in zip(("ctranslate2", "openvino"), cell.goals.get(model, (0, 0)), strict=True):
        ratio = median(timing[peer] / timing["skipdec"] for timing in rounds)
        verdict = "**we lose**" if ratio < 1 else "faster"
        if goal:
            verdict += f", goal {goal} {'reached' if ratio >= goal else '**missed**'}"
        columns += [f"{median(timing[peer] for timing in rounds):.1f}", f"{ratio:.2f}× ({verdict})"]
    return columns


def peer_versions() -> str:
    """Names and versions of what is compared."""
    pinned = dict(line.split("==") for line in CONSTRAINTS.read_text().split() if "==" in line)
    peers = ", ".join(f"{package} {pinned[package]}" for package in PEER_PACKAGES)
    return f"skipdec {version('skipdec')} (onnxruntime {version('onnxruntime')}), {peers}"


def main() -> None:
    """Measure, print the table, and write it where ``--output`` says."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--models", nargs="+", choices=MODELS, default=["opt-125m", "opt-1.3b"])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--work", type=Path, default=PEERS / "models", help="checkpoints, 10 GB")
    parser.add_argument("--output", type=Path, help="Markdown file to write")
    arguments = parser.parse_args()

    prepare_environment()
    lines = [
        "# int8 at full depth against other engines",
        "",
        f"{peer_versions()}; {arguments.threads} threads on {platform.machine()}, "
        f"Python {platform.python_version()}, median of {arguments.rounds} interleaved rounds. "
        f"Random weights, greedy, prompts of {PROMPT} tokens where decoding is timed. "
        "Ratio: the other engine's time ÷ ours.",
        "",
    ]
    rows = []
    for model in arguments.models:
        directories = prepare_model(model, arguments.work / model)
        results = measure(directories, arguments.threads, arguments.rounds)
        rows += [table_row(model, cell, results[cell.name]) for cell in CELLS]
    report = "\n".join([*lines, markdown_table(_HEADINGS, rows)]) + "\n"
    print(report, end="")
    if arguments.output:
        arguments.output.write_text(report)


if __name__ == "__main__":
    main()
