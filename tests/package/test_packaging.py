"""The wheel contains every folder of the tree, each of which must have an __init__.py."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from runpy import run_path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "skipdec"
KERNELS = Path("engines", "kernels", "native")
RUNTIME = Path("runtime", "native")
HAS_COMPILER = shutil.which(os.environ.get("CXX", "g++")) is not None


def package_files() -> set[str]:
    """Return every file that the wheel must contain, as ``skipdec/...``."""
    folders = [folder for folder in PACKAGE.iterdir() if folder.is_dir()]
    sources = [
        *PACKAGE.glob("*.py"),
        *(file for folder in folders for file in folder.rglob("*.py")),
    ]
    return {file.relative_to(PACKAGE.parent).as_posix() for file in sources} | {
        "skipdec/engines/backends/row_copy.ptx",
        "skipdec/engines/constants/constants.json",
        "skipdec/exporter/architecture/published.json",
        "skipdec/py.typed",
        "skipdec/runtime/serving/http/playground.html",
    }


def run_build(kind: str, source: Path, out: Path, **variables: str) -> Path:
    """Build ``kind`` ("wheel" or "sdist") of the tree ``source`` in ``out``; return its files."""
    command = [sys.executable, "-m", "build", f"--{kind}", "--no-isolation", "--outdir", str(out)]
    subprocess.run(
        [*command, str(source)], check=True, capture_output=True, env={**os.environ, **variables}
    )
    (built,) = out.iterdir()
    return built


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the unpacked sdist, built from a copy as setuptools leaves a build folder in the tree.

    It has the objects of this checkout and the header generated for them, so that only
    changes are compiled.
    """
    folder = tmp_path_factory.mktemp("sdist")
    shutil.copytree(PACKAGE, folder / "tree" / "src" / "skipdec", symlinks=True)
    for name in package_files():
        target = folder / "tree" / "src" / name
        target.parent.resolve().mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / "src" / name, target)
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder / "tree")
    shutil.copytree(ROOT / KERNELS, folder / "tree" / KERNELS)
    compiled = shutil.ignore_patterns("bin", "lib")
    shutil.copytree(ROOT / RUNTIME, folder / "tree" / RUNTIME, ignore=compiled)
    archive = run_build("sdist", folder / "tree", folder / "dist")
    subprocess.run(["tar", "-xzf", archive, "-C", folder], check=True)
    unpacked = folder / archive.name.removesuffix(".tar.gz")
    for made in (Path("build", "kernels"), Path("build", "native", "generated")):
        if (ROOT / made).exists():
            shutil.copytree(ROOT / made, unpacked / made)
    return unpacked


@pytest.fixture(scope="module")
def wheel(sources: Path, tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """Return a wheel built as on a machine without a C++ compiler."""
    out = tmp_path_factory.mktemp("plain")
    return zipfile.ZipFile(run_build("wheel", sources, out, CXX="/bin/false"))


def test_a_wheel_without_a_compiler_contains_the_tree_and_no_library(
    wheel: zipfile.ZipFile,
) -> None:
    shipped = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert shipped == package_files()
    assert Path(str(wheel.filename)).name.endswith("-py3-none-any.whl")


@pytest.mark.skipif(not HAS_COMPILER, reason="no C++ compiler here")
def test_a_wheel_compiled_from_the_sdist_contains_the_libraries(
    sources: Path, tmp_path: Path
) -> None:
    built = zipfile.ZipFile(run_build("wheel", sources, tmp_path))
    shipped = {name for name in built.namelist() if ".dist-info/" not in name}
    kernels, *native = sorted(shipped - package_files())
    assert Path(kernels).match("skipdec/engines/kernels/_native*.so")
    headers = (ROOT / RUNTIME / "include").rglob("*.h*")
    programs = (ROOT / RUNTIME / "apps").glob("*.cpp")
    assert set(native) == {
        *(f"skipdec/{header.relative_to(ROOT)}" for header in headers),
        *(f"skipdec/runtime/native/bin/{file.stem.replace('_', '-')}" for file in programs),
        "skipdec/runtime/native/lib/libskipdec.so.1",
        "skipdec/runtime/native/lib/cmake/skipdec/skipdecConfig.cmake",
        "skipdec/runtime/native/lib/cmake/skipdec/skipdecConfigVersion.cmake",
        "skipdec/runtime/native/lib/pkgconfig/skipdec.pc",
    }
    assert "-py3-none-linux_" in str(built.filename)


@pytest.mark.skipif(not HAS_COMPILER, reason="no C++ compiler here")
def test_a_switch_omits_libskipdec(sources: Path, tmp_path: Path) -> None:
    built = zipfile.ZipFile(run_build("wheel", sources, tmp_path, SKIPDEC_LIBSKIPDEC="0"))
    (kernels,) = {name for name in built.namelist() if ".dist-info/" not in name} - package_files()
    assert Path(kernels).match("skipdec/engines/kernels/_native*.so")


def test_an_invalid_switch_is_refused() -> None:
    done = subprocess.run(
        [sys.executable, "setup.py", "build_ext"],
        cwd=ROOT,
        env=os.environ | {"SKIPDEC_LIBSKIPDEC": "no"},
        capture_output=True,
        text=True,
    )
    assert done.returncode != 0
    assert "SKIPDEC_LIBSKIPDEC is 'no'; allowed: 0 to leave libskipdec out, or 1" in done.stderr


@pytest.mark.parametrize(("quota", "processors"), [(None, 3), (1.5, 2), (0.5, 1), (16.0, 3)])
def test_a_build_runs_one_compiler_per_usable_processor(
    monkeypatch: pytest.MonkeyPatch, quota: float | None, processors: int
) -> None:
    allowed = run_path(str(ROOT / "setup.py"))["_processors"]

    def run_processor(path: str) -> dict[str, Any]:
        found = run_path(str(ROOT / path))
        found["available_cores"].__globals__["processor_quota"] = lambda: quota
        return found

    monkeypatch.setitem(allowed.__globals__, "run_path", run_processor)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 5}, raising=False)
    assert allowed() == processors


def test_the_wheel_contains_the_licence_and_both_commands(wheel: zipfile.ZipFile) -> None:
    metadata = {Path(name).name: wheel.read(name).decode() for name in wheel.namelist()}
    assert metadata["LICENSE"] == (ROOT / "LICENSE").read_text()
    assert "skipdec = skipdec.cli:main" in metadata["entry_points.txt"]
    assert "skipdec-export = skipdec.cli:export_main" in metadata["entry_points.txt"]
    assert (
        "skipdec-run = skipdec.runtime.libskipdec.run_program:main" in metadata["entry_points.txt"]
    )
    assert "License-Expression: Apache-2.0" in metadata["METADATA"]
