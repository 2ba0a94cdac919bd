"""Skipdec neither empties nor overwrites foreign files at names that it writes to."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from skipdec.engines.bundle import EngineBundle, replace_file, write_schedule
from skipdec.engines.bundle.place import open_own, require_own_directory
from skipdec.engines.bundle.writer import BundleWriter
from skipdec.engines.errors import BundleError, SkipDecError

MakeBundle = Callable[..., EngineBundle]


@pytest.fixture
def precious(tmp_path: Path) -> Path:
    """Return a foreign directory with a file that must survive."""
    directory = tmp_path / "precious"
    directory.mkdir()
    (directory / "manifest.json").write_text("thesis")
    return directory


def test_a_link_in_place_of_a_directory_empties_nothing(
    tmp_path: Path, make_bundle: MakeBundle, precious: Path
) -> None:
    for name in (".bundle.partial", ".bundle.old"):
        (tmp_path / name).symlink_to(precious)
        for resume in (True, False):
            writer = BundleWriter(tmp_path / "bundle", resume=resume)
            with pytest.raises(SkipDecError, match=f"is a link to {precious}"), writer:
                pass
        (tmp_path / name).unlink()
    assert (precious / "manifest.json").read_text() == "thesis"
    make_bundle(tmp_path / "bundle")


def test_a_planted_old_bundle_does_not_replace_a_missing_one(
    tmp_path: Path, make_bundle: MakeBundle
) -> None:
    planted = make_bundle(tmp_path / "planted").path
    (tmp_path / ".bundle.old").symlink_to(planted)
    with pytest.raises(BundleError, match="is a link to"):
        EngineBundle.open(tmp_path / "bundle")
    assert not (tmp_path / "bundle").exists()


@pytest.mark.parametrize("plant", [os.symlink, os.link])
def test_a_link_in_place_of_a_lock_overwrites_nothing(
    tmp_path: Path, precious: Path, plant: Callable[[Path, Path], None]
) -> None:
    plant(precious / "manifest.json", tmp_path / ".bundle.lock")
    with pytest.raises(BundleError, match="remove it"), BundleWriter(tmp_path / "bundle"):
        pass
    assert (precious / "manifest.json").read_text() == "thesis"


def test_a_link_in_place_of_a_new_schedule_overwrites_nothing(
    bundle: EngineBundle, precious: Path
) -> None:
    (bundle.path / ".schedule.json.new").symlink_to(precious / "manifest.json")
    with pytest.raises(BundleError, match="is a link to"):
        write_schedule(bundle.path, {"a": 1})
    assert (precious / "manifest.json").read_text() == "thesis"
    assert EngineBundle.open(bundle.path).schedule_document == bundle.schedule_document


def test_leftovers_of_a_killed_write_are_reused_by_the_next(tmp_path: Path) -> None:
    (tmp_path / ".schedule.json.new").write_text("longer than what comes after it")
    replace_file(tmp_path / "schedule.json", b"{}")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"schedule.json": "{}"}


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda path: path.mkdir(), "is not a file"),
        (lambda path: os.mkfifo(path), "is not a file"),
        (lambda path: path.symlink_to("/dev/zero"), "is a link to /dev/zero"),
        (lambda path: path.symlink_to(path), "is a link to"),
    ],
)
def test_only_a_regular_file_is_opened(
    tmp_path: Path, make: Callable[[Path], None], text: str
) -> None:
    make(tmp_path / "lock")
    with pytest.raises(BundleError, match=text):
        open_own(tmp_path / "lock")


def test_a_world_writable_directory_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    require_own_directory(tmp_path)
    tmp_path.chmod(0o777)
    with pytest.raises(BundleError, match="can be written by everybody"):
        require_own_directory(tmp_path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_foreign_directory_is_refused_unless_its_parent_is_foreign_too(tmp_path: Path) -> None:
    directory = tmp_path / ".bundle.partial"
    directory.mkdir()
    os.chown(directory, 12345, -1)
    with pytest.raises(BundleError, match="belongs to user 12345, not to user 0"):
        require_own_directory(directory)
    os.chown(tmp_path, 12345, -1)
    require_own_directory(directory)
