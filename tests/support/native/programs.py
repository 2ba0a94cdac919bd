"""Compiles C++ programs of the tests from sources of runtime/native, once each."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SOURCES = ROOT / "runtime/native/src"
TESTS = ROOT / "tests/runtime/native"
_OUTPUT = ROOT / "build/native-tests"
_FLAGS = ("-std=c++17", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-ffp-contract=off")


def built_program(
    name: str,
    sources: Iterable[str],
    *,
    flags: tuple[str, ...] = (),
    libraries: tuple[str, ...] = (),
) -> Path:
    """Return the program of tests/runtime/native/``name`` and of ``sources`` below SOURCES.

    Skips the test, with the reason, where there is no g++ or no nlohmann/json.hpp.
    """
    compiler = _compiler()
    flags = (*_FLAGS, *flags)
    objects = [_object(compiler, TESTS / name, flags)]
    objects += [_object(compiler, SOURCES / source, flags) for source in sources]
    program = _OUTPUT / f"{Path(name).stem}-{_digest(*map(str, objects), *flags, *libraries)}"
    if not program.exists():
        _run(["g++", *flags, *map(str, objects), *libraries], program)
    return program


@cache
def _compiler() -> tuple[str, ...]:
    if shutil.which("g++") is None:
        pytest.skip("no g++")
    probe = ["g++", "-fsyntax-only", "-x", "c++", "-include", "nlohmann/json_fwd.hpp", os.devnull]
    if subprocess.run(probe, capture_output=True, check=False).returncode:
        pytest.skip("no nlohmann/json.hpp (Debian: nlohmann-json3-dev)")
    return ("ccache", "g++") if shutil.which("ccache") else ("g++",)


def _object(compiler: tuple[str, ...], source: Path, flags: tuple[str, ...]) -> Path:
    digest = _digest(_headers(), source.read_text(encoding="utf-8"), *flags)
    path = _OUTPUT / f"{source.stem}-{digest}.o"
    if not path.exists():
        _run([*compiler, *flags, f"-I{SOURCES}", f"-I{TESTS}", "-c", str(source)], path)
    return path


@cache
def _headers() -> str:
    """Digest of every header: a change of one compiles all again."""
    files = sorted(
        path for folder in (SOURCES, TESTS) for path in folder.rglob("*") if path.suffix != ".cpp"
    )
    return _digest(*(path.read_text(encoding="utf-8") for path in files if path.is_file()))


def _digest(*texts: str) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:16]


def _run(command: list[str], output: Path) -> None:
    output.parent.mkdir(parents=True, exist_ok=True)
    unfinished = output.with_name(f"{output.name}.{os.getpid()}")
    result = subprocess.run(
        [*command, "-o", str(unfinished)], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    unfinished.replace(output)  # whole, or not there
