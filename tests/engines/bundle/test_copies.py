"""A bundle is copied whole or not at all."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hollow_bundles import write_hollow_bundle

from skipdec.engines.bundle import EngineBundle
from skipdec.engines.bundle.place import exchange
from skipdec.engines.errors import BundleError, UsageError
from skipdec.runtime.schedule import ExitSchedule


@pytest.fixture
def bundle(tmp_path: Path) -> EngineBundle:
    written = write_hollow_bundle(tmp_path / "bundle", ExitSchedule.full(2))
    (written.path / "README.md").write_text("---\nlicense: mit\n---\n# hollow\n")
    (written.path / "notes.txt").write_text("mine")
    return written


@pytest.mark.parametrize(
    ("problem", "damage"),
    [
        ("has SHA-256", lambda file: file.write_bytes(bytes(file.stat().st_size))),
        ("is missing", Path.unlink),
    ],
)
def test_a_damaged_bundle_is_not_copied(
    bundle: EngineBundle, tmp_path: Path, problem: str, damage: Callable[[Path], object]
) -> None:
    damage(bundle.path / bundle.manifest.engines[1].weights[0])
    with pytest.raises(BundleError, match=problem):
        bundle.save(tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def test_a_bundle_replaced_during_the_copy_is_not_copied(
    bundle: EngineBundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = write_hollow_bundle(tmp_path / "other", ExitSchedule.full(2), source={"of": "another"})
    copy = shutil.copy2
    copy(bundle.path / "README.md", other.path)

    def replace_after_copy(source: Path, target: Path) -> None:
        copy(source, target)
        if source.name == "manifest.json":
            assert exchange(bundle.path, other.path)

    monkeypatch.setattr("skipdec.engines.bundle.bundle.shutil.copy2", replace_after_copy)
    with pytest.raises(BundleError, match="was replaced since the work began"):
        bundle.save(tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def test_a_copy_is_saved_atomically(bundle: EngineBundle, tmp_path: Path) -> None:
    saved = bundle.save(tmp_path / "copy")
    assert saved.manifest == bundle.manifest
    assert (saved.path / "README.md").read_text() == (bundle.path / "README.md").read_text()
    assert not (saved.path / "notes.txt").exists()
    with pytest.raises(UsageError, match="pass --force"):
        bundle.save(tmp_path / "copy")
