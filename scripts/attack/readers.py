"""Open tampered bundles with both readers, Python's and libskipdec's.

    python scripts/attack/readers.py --count 20000

Each try changes one thing of manifest.json, schedule.json or tokenizer.json of a tiny bundle (a
value's type, size or place; a key or entry dropped, duplicated or added; the text itself) and
corrects all digests. Both readers must agree that the bundle is valid, or refuse it with the same
code. Other verdicts are printed with the change, and the exit code is 1. Bundles that both refuse
are counted separately; engines are not run.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from skipdec.engines.bundle import EngineBundle, file_record
from skipdec.engines.bundle.contract import check_contract
from skipdec.engines.documents import sealed_text
from skipdec.engines.errors import (
    BundleError,
    CapacityError,
    EnvironmentMismatchError,
    ScheduleError,
    SkipDecError,
    UsageError,
)
from skipdec.runtime.drafting.known_ngrams import known_ngrams
from skipdec.runtime.schedule.bundle import bundle_schedule
from skipdec.runtime.tokens.tokenizer import Tokenizer

ROOT = Path(__file__).parents[2]
OPEN = "open"
# libskipdec's names of Python's error classes, derived classes first.
_CODES: tuple[tuple[type[SkipDecError], str], ...] = (
    (ScheduleError, "schedule"),
    (CapacityError, "capacity"),
    (UsageError, "usage"),
    (BundleError, "bundle"),
    (EnvironmentMismatchError, "environment"),
)
DOCUMENTS = ("manifest.json", "schedule.json", "tokenizer.json")
_DIGEST = re.compile(rb'^  "digest": "([0-9a-f]{64})"', re.MULTILINE)
_SCALARS: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 3, 4096, 4097, 2**20 + 1, 2**31, 2**63 - 1, 2**63, 2**64),
    *(10**30, -(2**63) - 1, 0.0, 1.0, 0.5, 1e300, float("nan"), float("inf"), "", "a", "1", "é"),
    *("full", "2x", "linear", "top", "B", "../x", "a//b", "a/", "a\0b", "\ud800", "x" * 300),
)
_COLLECTIONS: tuple[Any, ...] = ([], {}, [[]], [1], ["B"], {"a": 1}, {"": None})


@dataclass(frozen=True)
class Tampering:
    """Changes one thing of the bundle in ``directory``; each method describes its change."""

    directory: Path
    random: random.Random

    def manifest(self) -> str:
        """Change a value of manifest.json."""
        return self._value("manifest.json", lambda document: [document])

    def facts(self) -> str:
        """Change a value of the model, the precision, an engine or a file's record."""
        return self._value(
            "manifest.json",
            lambda document: [
                *(document["model"], document["precision"]),
                *(document["engines"], document["files"], document["candidates"]),
                *(document.get("trained_draft"), document.get("draft_head")),
            ],
        )

    def schedule(self) -> str:
        """Change a value of schedule.json."""
        return self._value("schedule.json", lambda document: [document, document["schedule"]])

    def tokenizer(self) -> str:
        """Change a value of tokenizer.json."""
        return self._value("tokenizer.json", _parts_of_tokenizer)

    def text(self) -> str:
        """Change bytes of one of the three files: layout, numbers, strings, duplicate keys."""
        name = self.random.choice(DOCUMENTS)
        content = (self.directory / name).read_bytes()
        change = self.random.choice(_TEXTS)
        self._write(name, change(content, self.random))
        return f"{name}: {change.__name__.strip('_')}"

    def _value(self, name: str, places: Callable[[Any], list[Any]]) -> str:
        document = json.loads((self.directory / name).read_bytes())
        did = self._edit(self.random.choice([place for place in places(document) if place]))
        if name == "tokenizer.json":
            self._write(name, json.dumps(document).encode())
        else:
            if name == "manifest.json":
                self._refresh(document)
            self._replace(name, sealed_text(document).encode())
        return f"{name}: {did}"

    def _edit(self, document: Any) -> str:  # noqa: ANN401  (a JSON object or array)
        """Change one value somewhere in ``document``."""
        place, path = document, ""
        while True:
            key = self.random.choice(list(place) if isinstance(place, dict) else range(len(place)))
            path, inner = f"{path}.{key}", place[key]
            if not (isinstance(inner, dict | list) and inner) or self.random.random() < 0.15:
                break
            place = inner
        before = json.dumps(inner)[:60]
        match self.random.choice(("set", "retype", "scale", "drop", "double", "add", "swap")):
            case "retype":
                place[key] = _retyped(inner, self.random)
            case "scale" if type(inner) is int:
                place[key] = inner * self.random.choice((1, 2, 1000, -1)) + self.random.choice(
                    (-1, 1)
                )
            case "drop":
                del place[key]
                return f"{path} dropped"
            case "double" if isinstance(place, list):
                place.insert(key, inner)
                return f"{path} doubled"
            case "double":
                new = self.random.choice((f"{key}x", "a", str(key).upper()))
                place[new] = inner
                return f"{path} also as {new}"
            case "add" if isinstance(inner, dict):
                inner[self.random.choice(("a", "text", "horizon", "prompt"))] = self._any()
            case "swap" if len(place) > 1:
                other = self.random.choice(
                    list(place) if isinstance(place, dict) else range(len(place))
                )
                place[key], place[other] = place[other], inner
                return f"{path} <-> {other}"
            case _:
                place[key] = self._any()
        return f"{path} {before} -> {json.dumps(place[key])[:60]}"

    def _any(self) -> Any:  # noqa: ANN401  (any JSON value)
        values = _SCALARS if self.random.random() < 0.8 else _COLLECTIONS
        return self.random.choice(values)

    def _write(self, name: str, content: bytes) -> None:
        """Write one of the three files, sealed with the digest of its own bytes."""
        if name == "tokenizer.json":
            self._replace(name, content)
            manifest = json.loads((self.directory / "manifest.json").read_bytes())
            self._refresh(manifest)
            self._replace("manifest.json", sealed_text(manifest).encode())
            return
        if found := _DIGEST.search(content):
            blank = content[: found.start(1)] + b"0" * 64 + content[found.end(1) :]
            digest = hashlib.sha256(blank).hexdigest().encode()
            content = content[: found.start(1)] + digest + content[found.end(1) :]
        self._replace(name, content)

    def _refresh(self, manifest: Any) -> None:  # noqa: ANN401  (any JSON value)
        """Correct the records of existing files."""
        for record in manifest["files"] if isinstance(manifest.get("files"), list) else ():
            path = record.get("path") if isinstance(record, dict) else None
            if path == "tokenizer.json":
                record.update(file_record(self.directory, path).model_dump())

    def _replace(self, name: str, content: bytes) -> None:
        (self.directory / name).unlink()  # a copy may consist of hard links
        (self.directory / name).write_bytes(content)


def _parts_of_tokenizer(document: Any) -> list[Any]:  # noqa: ANN401  (JSON)
    model = document["model"]
    return [
        *(document, model, model["vocab"], model["merges"]),
        *(document["added_tokens"], document["pre_tokenizer"], document["decoder"]),
        *(document.get("post_processor"),),
    ]


def _retyped(value: Any, chosen: random.Random) -> Any:  # noqa: ANN401  (JSON)
    """Return ``value`` as another JSON type that could be mistaken for it."""
    forms: list[Any] = [str(value), [value], {"value": value}, None]
    if isinstance(value, int | float):
        forms += [float(value), bool(value), int(value)]
    if isinstance(value, bool):
        forms += [int(value), float(value)]
    if isinstance(value, str):
        forms += [value.upper(), f" {value}", f"{value} ", list(value)]
        forms += [int(value)] if value.isdecimal() else []
    if isinstance(value, list):
        forms += [dict(enumerate(map(str, value))), value[::-1], *value[:1]]
    if isinstance(value, dict):
        forms += [list(value), list(value.values()), list(value.items())]
    return chosen.choice(forms)


def _doubled_line(content: bytes, chosen: random.Random) -> bytes:
    lines = content.split(b"\n")
    place = chosen.randrange(len(lines))
    return b"\n".join([*lines[:place], lines[place], *lines[place:]])


def _doubled_key(content: bytes, chosen: random.Random) -> bytes:
    members = list(re.finditer(rb'"[^"\\]*": (?:"[^"\\]*"|-?\d+|true|false|null)', content))
    if not members:
        return content
    member = chosen.choice(members)
    return content[: member.end()] + b", " + member[0] + content[member.end() :]


def _other_number(content: bytes, chosen: random.Random) -> bytes:
    numbers = list(re.finditer(rb"(?<=[ \[])-?\d+(?=[,\n\]}])", content))
    if not numbers:
        return content
    number = chosen.choice(numbers)
    forms = [b"%s.0", b"%se0", b"0%s", b"+%s", b"%s.", b"%sE1", b"-%s", b"%s0000000000000000000000"]
    written = chosen.choice(forms) % number[0]
    return content[: number.start()] + written + content[number.end() :]


def _other_string(content: bytes, chosen: random.Random) -> bytes:
    letters = list(re.finditer(rb"(?<=[a-z])[a-z](?=[a-z])", content))
    letter = chosen.choice(letters)
    forms = [b"\\u%04x" % letter[0][0], b"\\u%04X" % letter[0][0], b"\\x", b"\xff", b"\xc3\xa9"]
    forms += [b"\\ud83d\\ude00", b"\\ud83d", b"\t", b"\\t", b"\\/", b"\x00", b"\x7f", b"\\u007f"]
    return content[: letter.start()] + chosen.choice(forms) + content[letter.end() :]


def _other_layout(content: bytes, chosen: random.Random) -> bytes:
    return chosen.choice(
        (
            content + b"\n",
            content + b" ",
            content[:-1],
            content + b"{}",
            b"\xef\xbb\xbf" + content,
            b" " + content,
            content.replace(b"\n", b"\r\n"),
            content.replace(b": ", b":", 1),
            content.replace(b"    ", b"\t", 1),
            content.replace(b",", b", ", 1),
            content.replace(b"}", b",}", 1),
            content + b"// ",
            content[: chosen.randrange(len(content))],
            json.dumps(json.loads(content), indent=2).encode() + b"\n",
        )
    )


def _cut_bytes(content: bytes, chosen: random.Random) -> bytes:
    start = chosen.randrange(len(content))
    return content[:start] + content[start + chosen.choice((1, 2, 8)) :]


def _other_byte(content: bytes, chosen: random.Random) -> bytes:
    place = chosen.randrange(len(content))
    return content[:place] + bytes([chosen.randrange(256)]) + content[place + 1 :]


_TEXTS: tuple[Callable[[bytes, random.Random], bytes], ...] = (
    *(_doubled_line, _doubled_key, _other_number, _other_string, _other_layout, _cut_bytes),
    _other_byte,
)
KINDS = ("manifest", "facts", "facts", "schedule", "schedule", "tokenizer", "tokenizer", "text")


def code_of(error: SkipDecError) -> str:
    """Return the name of libskipdec's status for an error of this class, e.g. "bundle"."""
    return next(code for kind, code in _CODES if isinstance(error, kind))


def python_verdict(bundle: Path) -> str:
    """Return `Generator.open`'s verdict on ``bundle`` before it loads an engine."""
    try:
        opened = EngineBundle.open(bundle, verify="full")
        check_contract(opened.manifest)
        bundle_schedule(opened)
        Tokenizer.of(opened, opened.manifest.prompt_template)
        known_ngrams(opened)()
    except SkipDecError as error:
        return f"refused {code_of(error)}: {' '.join(str(error).split())}"
    return OPEN


class NativeReader:
    """A process of libskipdec's test program read_bundles, which answers a path with a verdict."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def verdict(self, bundle: Path) -> str:
        """Return libskipdec's verdict on ``bundle`` before it loads an engine."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{bundle}\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"libskipdec's reader ended ({self._process.wait()}) at {bundle}")
        return answer.rstrip("\n")


@contextmanager
def native_reader(program: Path) -> Iterator[NativeReader]:
    """Run ``program`` inside the block."""
    with subprocess.Popen(
        [program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, errors="replace"
    ) as process:
        yield NativeReader(process)
        assert process.stdin is not None
        process.stdin.close()


@dataclass(frozen=True)
class Verdicts:
    """Both readers' verdicts on one tampered bundle."""

    seed: int
    did: str
    python: str
    native: str

    @property
    def agree(self) -> bool:
        """True if both open it, or both refuse it with the same code."""
        return self.python.partition(":")[0] == self.native.partition(":")[0]

    def __str__(self) -> str:
        return (
            f"seed {self.seed}, {self.did}\n"
            f"  Python:    {self.python[:300]}\n  libskipdec: {self.native[:300]}"
        )


def compare(
    whole: Path, scratch: Path, reader: NativeReader, seeds: range, kinds: tuple[str, ...] = KINDS
) -> Iterator[Verdicts]:
    """Yield the verdicts on copies of the bundle ``whole``, each tampered with by one seed."""
    directory = Path(shutil.copytree(whole, scratch / "tampered"))
    contents = {name: (directory / name).read_bytes() for name in DOCUMENTS}
    for seed in seeds:
        chosen = random.Random(seed)
        kind = chosen.choice(kinds)
        did = f"{kind}: {getattr(Tampering(directory, chosen), kind)()}"
        yield Verdicts(seed, did, python_verdict(directory), reader.verdict(directory))
        for name, content in contents.items():
            (directory / name).write_bytes(content)


def main() -> int:
    """Tamper with bundles and print those that only one reader refuses."""
    from harness import tiny_bundle

    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--count", type=int, default=20000, help="bundles to tamper with")
    parser.add_argument("--seed", type=int, default=0, help="of the first bundle; others follow")
    parser.add_argument("--kind", choices=sorted(set(KINDS)), help="of tampering (default: all)")
    arguments = parser.parse_args()
    finding = [sys.executable, str(ROOT / "tests/support/native/programs.py"), "read_bundles"]
    program = subprocess.run(finding, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    if not program:
        return 0
    kinds = (arguments.kind,) if arguments.kind else KINDS
    counts: Counter[str] = Counter()
    with (
        tempfile.TemporaryDirectory(prefix="attack-") as name,
        native_reader(Path(program)) as reader,
    ):
        whole = tiny_bundle(Path(name) / "whole")
        seeds = range(arguments.seed, arguments.seed + arguments.count)
        for verdicts in compare(whole, Path(name), reader, seeds, kinds):
            outcome = "open" if verdicts.python == OPEN else "refused"
            counts[outcome if verdicts.agree else "disagreed"] += 1
            if not verdicts.agree:
                print(verdicts, flush=True)
    print(", ".join(f"{outcome}: {count}" for outcome, count in sorted(counts.items())))
    return int(counts["disagreed"] > 0)


if __name__ == "__main__":
    sys.exit(main())
