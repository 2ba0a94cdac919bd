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
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from harness import run_forked, tiny_bundle

import skipdec.engines.backends.ort  # noqa: F401  (saves each child the import)
from skipdec import Generator, SamplingParams
from skipdec.engines.bundle import file_record, write_schedule
from skipdec.engines.documents import sealed_text

SECONDS = 20
MEMORY = 3 * 2**29
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2, 3, 255, 4 * 10**9, 2**31, 2**63, 10**30, -(10**30)),
    *(0.5, 1e308, float("nan"), "", "a", "layer", "B", "../x", "/etc/passwd", "a\0b", "é" * 9),
    *("x" * 100_000, [], {}, [[]], [1, 2, 3], {"a": 1}, ["B"] * 9, "float16", "int64"),
)
SPECIAL: tuple[Callable[[Path], object], ...] = (
    os.mkfifo,
    Path.mkdir,
    Path.touch,
    lambda path: path.symlink_to(path),
    lambda path: path.symlink_to("/dev/zero"),
    lambda path: path.symlink_to("/etc/hostname"),
    lambda path: path.write_bytes(b"[" * 100_000),
)


@dataclass(frozen=True)
class Tampering:
    """Changes one thing of the bundle in ``directory``; each method describes its change."""

    directory: Path
    random: random.Random

    def manifest(self) -> str:
        """Replace, drop or duplicate a value of manifest.json."""
        document = self._manifest()
        did = self._edit(document)
        self._seal(document)
        return did

    def model(self) -> str:
        """Change a value of the manifest's model or of one engine."""
        document = self._manifest()
        did = self._edit(self.random.choice([document["model"], *document["engines"]]))
        self._seal(document)
        return did

    def schedule(self) -> str:
        """Change a value of the exit schedule."""
        document = json.loads((self.directory / "schedule.json").read_bytes())
        part = self.random.choice([document["schedule"], document["plan"], document["presets"]])
        did = self._edit(part)
        write_schedule(self.directory, document)
        return did

    def graph(self) -> str:
        """Change bytes of an engine's graph."""
        return self._bytes(".onnx")

    def weights(self) -> str:
        """Change bytes, or the size, of an engine's weights."""
        return self._bytes(".weights")

    def tokenizer(self) -> str:
        """Change bytes of the tokenizer, or one of its values."""
        if self.random.random() < 0.5:
            return self._bytes("tokenizer.json")
        path = self.directory / "tokenizer.json"
        document = json.loads(path.read_bytes())
        did = self._edit(document)
        self._replace(path, json.dumps(document).encode())
        self._seal(self._manifest())
        return did

    def swapped_files(self) -> str:
        """Swap two files."""
        first, second = self.random.sample(sorted(self.directory.rglob("*.*[!.json]")), 2)
        contents = first.read_bytes(), second.read_bytes()
        self._replace(first, contents[1])
        self._replace(second, contents[0])
        self._seal(self._manifest())
        return f"{first.name} <-> {second.name}"

    def special_file(self) -> str:
        """Replace a file by a pipe, a directory, a link or garbage."""
        path = self.random.choice([p for p in sorted(self.directory.rglob("*")) if p.is_file()])
        path.unlink()
        index = self.random.randrange(len(SPECIAL))
        SPECIAL[index](path)
        return f"{path.name}: special file {index}"

    def _manifest(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads((self.directory / "manifest.json").read_bytes())
        return document

    def _seal(self, document: dict[str, Any]) -> None:
        """Write the manifest with current records of the files and a valid digest."""
        present = {
            path.relative_to(self.directory).as_posix()
            for path in self.directory.rglob("*")
            if path.is_file()
        }
        for record in document["files"] if isinstance(document.get("files"), list) else ():
            if isinstance(record, dict) and str(record.get("path")) in present:
                record.update(file_record(self.directory, record["path"]).model_dump())
        self._replace(self.directory / "manifest.json", sealed_text(document).encode())

    def _edit(self, document: Any) -> str:  # noqa: ANN401  (a JSON object or array)
        """Change one value somewhere in ``document``, preferably not deep down."""
        place, path = document, "."
        while True:
            key = self.random.choice(list(place) if isinstance(place, dict) else range(len(place)))
            path += f"{key}."
            inner = place[key]
            if not (isinstance(inner, dict | list) and inner) or self.random.random() < 0.1:
                break
            place = inner
        match self.random.choice(("set", "set", "set", "scale", "drop", "double")):
            case "scale" if type(inner) is int:
                place[key] = inner * self.random.choice((2, 1000, -1)) + 1
            case "drop":
                del place[key]
            case "double" if isinstance(place, list):
                place.append(inner)
            case _:
                place[key] = self.random.choice(VALUES)
        now = place[key] if isinstance(place, dict) and key in place else "gone or moved"
        return f"{path} {str(inner)[:40]} -> {str(now)[:40]}"

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
        self._replace(path, bytes(content))
        self._seal(self._manifest())
        return f"{path.name}: {length} bytes at {start}"

    def _replace(self, path: Path, content: bytes) -> None:
        path.unlink()  # the copy consists of hard links
        path.write_bytes(content)


KINDS = (
    *("manifest", "model", "model", "schedule", "graph", "graph", "weights", "tokenizer"),
    *("swapped_files", "special_file"),
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
    parser.add_argument("--verbose", action="store_true", help="print every outcome")
    parser.add_argument("--bundle", type=Path, help="a small bundle (default: a new one)")
    arguments = parser.parse_args()
    outcomes: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="attack-") as name:
        whole = arguments.bundle or tiny_bundle(Path(name) / "whole")
        for seed in range(arguments.seed, arguments.seed + arguments.count):
            directory = Path(name) / "tampered"
            shutil.copytree(whole, directory, copy_function=os.link)
            chosen = random.Random(seed)
            kind = chosen.choice(KINDS)
            did = getattr(Tampering(directory, chosen), kind)()
            outcome = run_forked(partial(generate, directory), seconds=SECONDS, memory=MEMORY)
            outcomes[outcome.kind] += 1
            if arguments.verbose or not outcome.is_sound:
                print(f"seed {seed}, {kind}: {did}: {outcome.kind}\n{outcome.text}", flush=True)
            shutil.rmtree(directory)
    print(", ".join(f"{kind}: {count}" for kind, count in sorted(outcomes.items())))
    return int(not outcomes.keys() <= {"value", "error"})


if __name__ == "__main__":
    sys.exit(main())
