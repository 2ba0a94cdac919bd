"""A checkout in a folder of any name never replaces the installed package."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import skipdec

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "skipdec"
FLOORS = ("calib", "engines", "exporter", "runtime")


@pytest.fixture
def parent(tmp_path: Path) -> Path:
    """Return a folder that contains this checkout under the name ``skipdec``."""
    (tmp_path / "skipdec").symlink_to(ROOT)
    return tmp_path


@pytest.mark.parametrize("inside", [".", "skipdec", "skipdec/runtime"])
def test_python_next_to_a_clone_imports_the_installed_package(parent: Path, inside: str) -> None:
    code = "import skipdec, skipdec.engines.manifest; print(skipdec.__file__)"
    found = subprocess.run(
        [sys.executable, "-c", code], cwd=parent / inside, capture_output=True, text=True
    )
    assert found.stdout.strip() == skipdec.__file__, found.stderr


def test_python_next_to_a_clone_imports_an_installed_wheel(parent: Path, tmp_path: Path) -> None:
    """The installed package is regular, and the import system prefers it to a namespace."""
    site = tmp_path / "site"
    (site / "skipdec").mkdir(parents=True)
    (site / "skipdec" / "__init__.py").write_text("kind = 'installed'\n")
    found = subprocess.run(
        [sys.executable, "-c", "import skipdec; print(skipdec.kind)"],
        cwd=parent,
        env=os.environ | {"PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
    )
    assert found.stdout.strip() == "installed", found.stderr


def test_the_root_of_the_repository_is_not_a_package() -> None:
    assert not (ROOT / "__init__.py").exists()
    assert {entry.name for entry in PACKAGE.iterdir() if entry.is_symlink()} == set(FLOORS)


@pytest.mark.parametrize("floor", FLOORS)
def test_top_level_folders_are_parts_of_the_package(floor: str) -> None:
    assert (PACKAGE / floor).readlink() == Path("..", "..", floor)
