"""Build the C++ programs of tests/runtime/libskipdec with CMake, once for all tests."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PRESET = os.environ.get("SKIPDEC_NATIVE_PRESET", "tests")  # of runtime/native/CMakePresets.json
FOLDER = ROOT / "build" / "native" / PRESET
_COMPILER = os.environ.get("CXX", "c++")


@cache
def built_program(name: str) -> Path:
    """Return the program of programs/``name``.cpp, or ``skipdec-tests``.

    The latter contains all ``*_test.cpp``. Skips the test, with the reason, if CMake, a C++
    compiler, nlohmann/json.hpp or GoogleTest is missing. The environment variable
    SKIPDEC_NATIVE_PRESET selects ``asan`` or ``tsan`` for programs compiled with sanitizers.
    """
    return _built(name) / "tests" / name


@cache
def built_app(name: str) -> Path:
    """Return the program of runtime/native/apps with this name, e.g. ``skipdec-run``; may skip."""
    return _built(name) / name


@cache
def built_examples() -> Path:
    """Return where the programs of examples/cpp are installed, built against libskipdec's install.

    ``server`` is left out if cpp-httplib or nlohmann_json is missing; skips as above.
    """
    _built("skipdec", "skipdec-run", "skipdec-calls")
    installed, folder = FOLDER / "installed", FOLDER / "examples"
    launcher = ("-DCMAKE_CXX_COMPILER_LAUNCHER=ccache",) if shutil.which("ccache") else ()
    flags = (f"-DCMAKE_{language}_FLAGS=-Wall -Wextra -Werror" for language in ("C", "CXX"))
    options = ("-DCMAKE_BUILD_TYPE=Debug", f"-DCMAKE_PREFIX_PATH={installed}", *flags, *launcher)
    with _alone():
        for step in (
            ("--install", str(FOLDER), "--prefix", str(installed)),
            ("-S", str(ROOT / "examples" / "cpp"), "-B", str(folder), *options),
            ("--build", str(folder)),
            ("--install", str(folder), "--prefix", str(folder / "installed")),
        ):
            done = _cmake(*step)
            assert done.returncode == 0, done.stdout[-10_000:]
    return folder / "installed" / "bin"


def _built(*targets: str) -> Path:
    with _alone():
        _configure()
        parallel = ("--parallel", os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL", str(os.cpu_count())))
        built = _cmake("--build", str(FOLDER), *parallel, "--target", *targets)
    assert built.returncode == 0, built.stdout[-10_000:]
    return FOLDER


@cache
def _configure() -> None:
    for tool in ("cmake", _COMPILER):
        if (
            shutil.which(tool) is None
            or subprocess.run([tool, "--version"], capture_output=True).returncode
        ):
            pytest.skip(f"C++ programs can't be built here: no {tool}")
    options = ["-S", str(ROOT / "runtime" / "native"), "--preset", PRESET]
    options += [
        f"-DSKIPDEC_OBJECTS={_compiled_objects()}",
        f"-DPython3_EXECUTABLE={sys.executable}",
    ]
    configured = _cmake(*options)
    if configured.returncode and (lack := re.search(r".* is missing: .*", configured.stdout)):
        pytest.skip(f"C++ programs can't be built here: {lack[0].strip()}")
    assert configured.returncode == 0, configured.stdout


def _compiled_objects() -> str:
    """Return setup.py's list of the library's objects, which it recompiles if they are outdated.

    Empty if it can't.
    """
    command = [sys.executable, "setup.py", "--quiet", "build_ext"]
    command += ["--build-lib", str(FOLDER), "--build-temp", str(FOLDER)]
    with _alone(FOLDER.parent):  # presets share the objects, but not their lists
        subprocess.run(command, check=True, capture_output=True, cwd=ROOT)
    listed = FOLDER / "objects"
    return str(listed) if listed.exists() else ""


@contextmanager
def _alone(folder: Path = FOLDER) -> Iterator[None]:
    """Hold a lock while no other worker builds in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _cmake(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["cmake", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=ROOT / "runtime" / "native",
        text=True,
    )


if __name__ == "__main__":  # for scripts: print the path, or the reason for having none
    try:
        print(built_program(sys.argv[1]))
    except pytest.skip.Exception as reason:
        print(f"skipped: {reason}", file=sys.stderr)
