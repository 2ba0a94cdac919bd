"""The wheel holds the tree: a sub-package missing from pyproject's list would vanish silently."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NOT_SHIPPED = {"tests", "scripts", "docs", "build", "dist"}


def package_files() -> set[str]:
    """Every file that the wheel must hold, as ``skipdec/...``."""
    folders = [
        folder
        for folder in ROOT.iterdir()
        if folder.is_dir() and not folder.name.startswith(".") and folder.name not in NOT_SHIPPED
    ]
    sources = [*ROOT.glob("*.py"), *(file for folder in folders for file in folder.rglob("*.py"))]
    return {f"skipdec/{file.relative_to(ROOT).as_posix()}" for file in sources} | {
        "skipdec/py.typed"
    }


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """The wheel, built from a copy: setuptools leaves a build folder in the tree that it builds."""
    copy = tmp_path_factory.mktemp("wheel")
    for name in package_files():
        target = copy / "source" / Path(name).relative_to("skipdec")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / Path(name).relative_to("skipdec"), target)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy / "source")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(copy)]
    subprocess.run([*command, str(copy / "source")], check=True, capture_output=True)
    return zipfile.ZipFile(next(copy.glob("*.whl")))


def test_wheel_holds_exactly_the_packages_of_the_tree(wheel: zipfile.ZipFile) -> None:
    shipped = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert shipped == package_files()


def test_wheel_holds_the_licence_and_both_commands(wheel: zipfile.ZipFile) -> None:
    metadata = {Path(name).name: wheel.read(name).decode() for name in wheel.namelist()}
    assert metadata["LICENSE"] == (ROOT / "LICENSE").read_text()
    assert "skipdec = skipdec.cli:main" in metadata["entry_points.txt"]
    assert "skipdec-export = skipdec.cli:export_main" in metadata["entry_points.txt"]
    assert "License-Expression: Apache-2.0" in metadata["METADATA"]
