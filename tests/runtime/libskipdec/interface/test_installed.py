"""Programs find the installed library with find_package, pkg-config and skipdec-config."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from programs import FOLDER, built_program

from skipdec.engines.errors import EnvironmentMismatchError
from skipdec.runtime.libskipdec import config_program
from skipdec.runtime.libskipdec.paths import native_paths

pytestmark = pytest.mark.pages  # builds what docs/cpp.md shows

SOURCE = """
#include <skipdec/skipdec.h>
#include <stdio.h>
int main(void) { return printf("%s\\n", skipdec_status_name(SKIPDEC_BUNDLE)) < 0; }
"""
PROJECT = """
cmake_minimum_required(VERSION 3.22)
project(embeds LANGUAGES C)
find_package(skipdec 0.1 REQUIRED)
add_executable(embeds main.c)
target_link_libraries(embeds PRIVATE skipdec::skipdec)
"""


CPP_SOURCE = """
#include <skipdec/skipdec.hpp>
int main() { return skipdec::Params().num_completions() != 1; }
"""
CPP_PROJECT = PROJECT.replace("LANGUAGES C)", "LANGUAGES CXX)\nset(CMAKE_CXX_STANDARD 14)").replace(
    "main.c", "main.cpp"
)


@pytest.fixture(scope="module")
def cmake_lib(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the library folder of a CMake installation that was moved."""
    built_program("all")
    folder = tmp_path_factory.mktemp("installed")
    installation = ["cmake", "--install", str(FOLDER), "--prefix", str(folder / "first")]
    subprocess.run(installation, check=True, capture_output=True)
    moved = (folder / "first").rename(folder / "moved")
    return next(moved.rglob("libskipdec.so.1")).parent


@pytest.fixture(scope="module")
def pip_lib() -> Path:
    try:
        return native_paths().library.parent
    except EnvironmentMismatchError as error:
        pytest.skip(str(error))


@pytest.fixture(params=["cmake_lib", "pip_lib"])
def lib(request: pytest.FixtureRequest) -> Path:
    found: Path = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """Write a project and return the path of the program to build from it."""
    (tmp_path / "main.c").write_text(SOURCE)
    (tmp_path / "CMakeLists.txt").write_text(PROJECT)
    return tmp_path / "build" / "embeds"


def output_of(command: list[str], **variables: str) -> str:
    done = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, **variables}, check=True
    )
    return done.stdout.strip()


def test_cmake_finds_the_library_even_in_a_moved_installation(lib: Path, program: Path) -> None:
    if shutil.which("cmake") is None:
        pytest.skip("no cmake here")
    folders = ["-S", str(program.parents[1]), "-B", str(program.parent)]
    output_of(["cmake", *folders, f"-Dskipdec_DIR={lib / 'cmake' / 'skipdec'}"])
    output_of(["cmake", "--build", str(program.parent)])
    assert output_of([str(program)]) == "bundle"


def test_cmake_compiles_the_cpp_header_in_a_project_with_an_older_standard(
    cmake_lib: Path, tmp_path: Path
) -> None:
    (tmp_path / "main.cpp").write_text(CPP_SOURCE)
    (tmp_path / "CMakeLists.txt").write_text(CPP_PROJECT)
    build = str(tmp_path / "build")
    folder = f"-Dskipdec_DIR={cmake_lib / 'cmake' / 'skipdec'}"
    output_of(["cmake", "-S", str(tmp_path), "-B", build, folder])
    output_of(["cmake", "--build", build])
    output_of([str(tmp_path / "build" / "embeds")])


def test_pkg_config_finds_the_library_even_in_a_moved_installation(
    lib: Path, program: Path
) -> None:
    if shutil.which("pkg-config") is None:
        pytest.skip("no pkg-config here")
    command = ["pkg-config", "--cflags", "--libs", "skipdec"]
    flags = output_of(command, PKG_CONFIG_PATH=str(lib / "pkgconfig")).split()
    program.parent.mkdir()
    output_of(["gcc", str(program.parents[1] / "main.c"), *flags, "-o", str(program)])
    assert output_of([str(program)]) == "bundle"


def test_skipdec_config_prints_every_flag_that_a_compiler_needs(
    pip_lib: Path, program: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config_program.main(["--cflags", "--libs"])
    flags = capsys.readouterr().out.split()
    program.parent.mkdir()
    output_of(["gcc", str(program.parents[1] / "main.c"), *flags, "-o", str(program)])
    assert output_of([str(program)]) == "bundle"


def test_an_editable_install_finds_onnx_runtime_without_environment_variables(
    pip_lib: Path, exported: Callable[..., Path]
) -> None:
    if not (pip_lib.parents[2] / "setup.py").exists():
        pytest.skip("installed beside ONNX Runtime, not editable")
    command = [str(native_paths().executable), str(exported("untied")), "--token-ids", "5,6"]
    environment = {"PATH": "/usr/bin:/bin"}  # no VIRTUAL_ENV, no SKIPDEC_ONNXRUNTIME
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
