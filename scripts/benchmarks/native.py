"""Measure libskipdec: opening, memory, the host's share of a step, and steps beside Python's.

    python scripts/bench.py native opt-125m-int8 opt-1.3b-int8 --threads 2

Opening is a process that opens the bundle, with its weights hashed or not. Memory is resident
memory without weights files after a call at batch 1 (32 prompt tokens, 64 generated, full depth, KV
caches included). The host's share is a step of engines that do nothing, measured by
tests/runtime/libskipdec/programs/host_share.cpp, which CMake builds. Steps are those of
`skipdec bench --runtime native`. Prints Markdown.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
from pathlib import Path
from statistics import median
from time import perf_counter

from skipdec import native_paths
from skipdec.engines.backends.ort import onnxruntime_library
from skipdec.engines.host.processor import available_cores, processor_name

_ROOT = Path(__file__).parents[2]
_PRESET = "tests"


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("bundles", type=Path, nargs="+")
    parser.add_argument("--threads", type=int, default=available_cores())
    parser.add_argument("--repetitions", type=int, default=5)
    arguments = parser.parse_args()
    os.environ["SKIPDEC_ONNXRUNTIME"] = str(onnxruntime_library())
    print(f"{arguments.threads} threads of {processor_name()}\n")
    _print_host_share()
    print("| bundle | opened, graphs hashed | opened, all hashed | memory without weights |")
    print("|---|---|---|---|")
    for bundle in arguments.bundles:
        seconds = [_opening(bundle, verify, arguments) for verify in ("graphs", "full")]
        memory = _memory(bundle, arguments.threads) / 1024
        print(f"| {bundle.name} | {seconds[0]:.2f} s | {seconds[1]:.2f} s | {memory:.0f} MB |")
    for bundle in arguments.bundles:
        _print_steps(bundle, arguments)


def _print_host_share() -> None:
    source = ["-S", str(_ROOT / "runtime/native"), "--preset", _PRESET]
    folder = _ROOT / "build/native" / _PRESET
    here = _ROOT / "runtime/native"
    subprocess.run(["cmake", *source], check=True, stdout=subprocess.DEVNULL, cwd=here)
    build = ["cmake", "--build", str(folder), "--target", "host_share"]
    subprocess.run(build, check=True, stdout=subprocess.DEVNULL)
    print("Host's share of a step, with engines that do nothing:\n")
    print(subprocess.check_output([folder / "tests/host_share"], text=True))


def _opening(bundle: Path, verify: str, arguments: argparse.Namespace) -> float:
    """Return median seconds of a process that opens the bundle and generates one token."""
    command = [str(native_paths().executable), str(bundle), "--token-ids", "5", "--max-tokens", "1"]
    command += ["--verify", verify, "--threads", str(arguments.threads)]
    seconds = []
    for _ in range(arguments.repetitions):
        start = perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        seconds.append(perf_counter() - start)
    return median(seconds)


def _memory(bundle: Path, threads: int) -> int:
    """Return KiB of resident memory after a call, without weights files."""
    program = native_paths().executable.with_name("skipdec-calls")
    command = [str(program), str(bundle), str(threads), "1"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        call = {"client": "", "ignore_eos": True, "prompts": [[5] * 32], "max_tokens": 64}
        process.stdin.write(json.dumps(call) + "\n")
        process.stdin.flush()
        process.stdout.readline()
        resident = _resident_without_weights(process.pid)
        process.kill()
    return resident


def _resident_without_weights(pid: int) -> int:
    total, is_weights = 0, False
    for line in Path(f"/proc/{pid}/smaps").read_text(encoding="utf-8").splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            is_weights = line.endswith(".weights")
        elif line.startswith("Rss:") and not is_weights:
            total += int(line.split()[1])
    return total


def _print_steps(bundle: Path, arguments: argparse.Namespace) -> None:
    command = ["skipdec", "bench", str(bundle), "--runtime", "native", "--batch-sizes", "1,8"]
    command += ["--prompt-len", "32", "--gen-len", "64", "--schedule", "2x", "--schedule", "4x"]
    command += ["--threads", str(arguments.threads), "--json"]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    print(f"\n{bundle.name}, 32 prompt tokens, 64 generated:\n")
    print(
        "| batch | schedule | Python, ms per step | libskipdec, ms per step | relative to Python |"
    )
    print("|---|---|---|---|---|")
    entries = json.loads(done.stdout)["measurements"]
    for python, native in zip(entries[::2], entries[1::2], strict=True):
        print(
            f"| {python['batch_size']} | {python['name']} | {python['step_milliseconds_p50']:.2f} "
            f"| {native['step_milliseconds_p50']:.2f} | {native['of_python']:.2f}× |"
        )
