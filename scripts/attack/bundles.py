"""Open tampered bundles with valid digests: each must run or fail with a named error.

    python scripts/attack/bundles.py --count 1000

Each try changes one thing of a tiny bundle (a field of the manifest or the schedule, bytes of a
graph, of weights or of the tokenizer) or replaces a file by something else, and corrects all
digests, as an attacker or a bug might. A forked child opens it and generates eight tokens. It must
print tokens or one of our errors within 20 seconds and 1.5 GiB; a traceback, a crash or a hang is
printed with the change, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from harness import run_forked, tiny_bundle
from readers import Tampering

import skipdec.engines.backends.ort  # noqa: F401  (saves each child the import)
from skipdec import Generator, SamplingParams
from skipdec.engines.bundle import file_record
from skipdec.engines.documents import sealed_text

SECONDS = 20
MEMORY = 3 * 2**29
SPECIAL: tuple[Callable[[Path], object], ...] = (
    os.mkfifo,
    Path.mkdir,
    Path.touch,
    lambda path: path.symlink_to(path),
    lambda path: path.symlink_to("/dev/zero"),
    lambda path: path.symlink_to("/etc/hostname"),
    lambda path: path.write_bytes(b"[" * 100_000),
)


class FileTampering(Tampering):
    """Also changes files that engines read; each method describes its change."""

    def graph(self) -> str:
        """Change bytes of an engine's graph."""
        return self._bytes(".onnx")

    def weights(self) -> str:
        """Change bytes, or the size, of an engine's weights."""
        return self._bytes(".weights")

    def tokenizer_bytes(self) -> str:
        """Change bytes of the tokenizer."""
        return self._bytes("tokenizer.json")

    def swapped_files(self) -> str:
        """Swap two files of engines."""
        engines = [p for p in sorted(self.directory.rglob("*.*")) if p.suffix != ".json"]
        first, second = self.random.sample(engines, 2)
        contents = first.read_bytes(), second.read_bytes()
        self._replace(first.relative_to(self.directory).as_posix(), contents[1])
        self._replace(second.relative_to(self.directory).as_posix(), contents[0])
        self._seal()
        return f"{first.name} <-> {second.name}"

    def special_file(self) -> str:
        """Replace a file by a pipe, a directory, a link or garbage."""
        path = self.random.choice([p for p in sorted(self.directory.rglob("*")) if p.is_file()])
        path.unlink()
        index = self.random.randrange(len(SPECIAL))
        SPECIAL[index](path)
        return f"{path.name}: special file {index}"

    def _seal(self) -> None:
        """Write the manifest with current records of the files and a valid digest."""
        document = json.loads((self.directory / "manifest.json").read_bytes())
        for record in document["files"]:
            if (self.directory / record["path"]).is_file():
                record.update(file_record(self.directory, record["path"]).model_dump())
        self._replace("manifest.json", sealed_text(document).encode())

    def _bytes(self, suffix: str) -> str:
        path = self.random.choice(sorted(self.directory.rglob(f"*{suffix}")))
        content = bytearray(path.read_bytes())
        start = self.random.randrange(len(content))
        length = min(self.random.choice((1, 2, 8, 64, 4096)), len(content) - start)
        match self.random.choice(("flip", "flip", "random", "cut", "grow", "zero", "end")):
            case "flip":
                content[start] ^= 1 << self.random.randrange(8)
            case "random":
                content[start : start + length] = self.random.randbytes(length)
            case "cut":
                del content[start : start + length]
            case "grow":
                content[start:start] = content[start : start + length]
            case "zero":
                content[start : start + length] = bytes(length)
            case _:
                del content[start:]
        self._replace(path.relative_to(self.directory).as_posix(), bytes(content))
        self._seal()
        return f"{path.name}: {length} bytes at {start}"


KINDS = (
    *("manifest", "facts", "facts", "schedule", "graph", "graph", "weights"),
    *("tokenizer", "tokenizer_bytes", "swapped_files", "special_file"),
)


def generate(bundle: Path) -> str:
    """Open the bundle and generate eight tokens from text, or from ids without a tokenizer."""
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    with Generator.open(bundle, threads=1, kv_memory=2**26, max_batch_size=1) as generator:
        prompt: Any = "Hello" if generator.tokenizer else [[5, 6, 7]]
        return str(generator.generate(prompt, params)[0].outputs[0].token_ids)


def main() -> int:
    """Tamper with bundles and print unsound outcomes."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--count", type=int, default=1000, help="bundles to tamper with")
    parser.add_argument("--seed", type=int, default=0, help="of the first bundle; others follow")
    arguments = parser.parse_args()
    outcomes: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="attack-") as name:
        whole = tiny_bundle(Path(name) / "whole")
        for seed in range(arguments.seed, arguments.seed + arguments.count):
            directory = Path(name) / "tampered"
            shutil.copytree(whole, directory, copy_function=os.link)
            chosen = random.Random(seed)
            kind = chosen.choice(KINDS)
            did = getattr(FileTampering(directory, chosen), kind)()
            outcome = run_forked(partial(generate, directory), seconds=SECONDS, memory=MEMORY)
            outcomes[outcome.kind] += 1
            if not outcome.is_sound:
                print(f"seed {seed}, {kind}: {did}: {outcome.kind}\n{outcome.text}", flush=True)
            shutil.rmtree(directory)
    print(", ".join(f"{kind}: {count}" for kind, count in sorted(outcomes.items())))
    return int(not outcomes.keys() <= {"value", "error"})


if __name__ == "__main__":
    sys.exit(main())
