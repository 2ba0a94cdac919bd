"""Any result is replaced as safely as a bundle: a killed swap is completed or undone."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from skipdec.calib.evaluation.report import evaluation_place
from skipdec.calib.rounding.files import rounded_place
from skipdec.calib.tuning.work import TuningDirectories
from skipdec.engines.bundle import EngineBundle
from skipdec.engines.bundle import place as place_module
from skipdec.engines.bundle.place import Place, WriterLock, bundle_place
from skipdec.engines.errors import BundleError, UsageError


def tuned_place(output: Path) -> Place:
    return TuningDirectories(output).place


@pytest.fixture(params=[tuned_place, rounded_place, evaluation_place])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    place = request.param(tmp_path / "result")
    assert isinstance(place, Place)
    return place


def refuse_to_move(
    result: Path, code: int, monkeypatch: pytest.MonkeyPatch, *, is_known: bool = True
) -> None:
    """Make renames of ``result`` fail; unless ``is_known``, only those to free names."""
    rename, exchange = Path.rename, place_module.exchange

    def renamed(path: Path, target: Path) -> Path:
        if path == result and (is_known or not target.exists()):
            raise OSError(code, os.strerror(code), str(path))
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", renamed)
    monkeypatch.setattr(
        place_module, "exchange", lambda *names: result not in names and exchange(*names)
    )


def write(place: Place, content: str, *, force: bool = False) -> None:
    with place.replaced(force=force) as directory:
        (directory / place.mark).write_text(content)


def seen(place: Place) -> tuple[str, list[str]]:
    """Return the mark's content and the names in the result's directory."""
    names = sorted(path.name for path in place.target.parent.iterdir())
    return (place.target / place.mark).read_text(), names


@pytest.mark.parametrize("place_of", [tuned_place, rounded_place, evaluation_place])
def test_a_dash_is_refused_as_the_name_of_a_result(
    place_of: Callable[[Path], Place], tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match="is not stdout here; give another name"):
        place_of(tmp_path / "-").check(force=False)


def test_the_root_of_the_file_system_is_refused_as_a_target() -> None:
    with pytest.raises(UsageError, match="is the root of the file system"):
        bundle_place(Path("/")).check(force=True)
    with pytest.raises(BundleError, match="is not a bundle: it has no manifest"):
        EngineBundle.open("/")


def test_a_result_that_holds_what_is_read_is_not_replaced(place: Place, tmp_path: Path) -> None:
    write(place, "first")
    (data := place.target / "data.jsonl").touch()
    (link := tmp_path / "link.jsonl").symlink_to(data)
    for path in (data, link, place.target):
        with pytest.raises(UsageError, match=f"holds what is read, {path}; choose another name"):
            place.check(force=True, reads=[path])
    place.check(force=True, reads=[None, tmp_path / "other.jsonl"])


def test_a_half_deleted_result_does_not_block_the_next(place: Place) -> None:
    write(place, "first")
    (place.old / "weights").mkdir(parents=True)  # killed while deleting: the mark is deleted first
    write(place, "second", force=True)
    assert seen(place) == ("second", ["result"])


def test_a_swap_killed_between_its_renames_is_undone(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(place, "first")
    place.target.rename(place.old)
    with pytest.raises(UsageError, match="--force"):
        write(place, "second")
    assert seen(place) == ("first", ["result"])
    place.target.rename(place.old)
    with pytest.raises(KeyboardInterrupt), place.replaced(force=True):
        raise KeyboardInterrupt
    assert seen(place) == ("first", ["result"]), "the only copy is kept"
    monkeypatch.setattr(place_module, "exchange", lambda first, second: False)
    write(place, "second", force=True)
    assert seen(place) == ("second", ["result"])


def test_an_error_leaves_the_old_result(place: Place) -> None:
    write(place, "first")
    with pytest.raises(TypeError):
        write(place, None, force=True)  # type: ignore[arg-type]
    assert seen(place) == ("first", ["result"])


@pytest.mark.parametrize("code", [errno.EXDEV, errno.EBUSY, errno.EPERM])
def test_a_result_that_cannot_be_renamed_is_refused_before_work(
    place: Place, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    write(place, "first")
    refuse_to_move(place.target, code, monkeypatch)
    with (
        pytest.raises(BundleError, match="can't be replaced here"),
        place.locked(force=True),
    ):
        pytest.fail("the work began")
    assert seen(place) == ("first", ["result"])


def test_a_result_replaces_an_empty_image_directory_but_no_mount(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.target.mkdir()
    with monkeypatch.context() as patch:
        refuse_to_move(place.target, errno.EBUSY, patch)
        with pytest.raises(BundleError, match="choose another name"):
            write(place, "first")
    refuse_to_move(place.target, errno.EXDEV, monkeypatch)
    write(place, "first")
    assert seen(place) == ("first", ["result"])


def test_a_result_that_others_may_write_to_is_replaced(place: Place) -> None:
    write(place, "first")
    place.target.chmod(0o777)
    write(place, "second", force=True)
    assert seen(place) == ("second", ["result"])


def test_a_result_whose_files_may_not_be_deleted_is_refused(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(place, "first")
    access = os.access  # root may always
    monkeypatch.setattr(
        os, "access", lambda path, mode: path != place.target and access(path, mode)
    )
    with pytest.raises(UsageError, match="no permission to delete files in it"):
        write(place, "second", force=True)
    assert seen(place) == ("first", ["result"])


def test_a_failed_exchange_leaves_both_names(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    assert not place_module.exchange(tmp_path / "one", tmp_path / "none")
    assert [path.name for path in tmp_path.iterdir()] == ["one"]


def test_a_failed_swap_keeps_the_old_and_the_new_result(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(place, "first")
    refuse_to_move(place.target, errno.EXDEV, monkeypatch, is_known=False)
    with pytest.raises(OSError, match="cross-device"):
        write(place, "second", force=True)
    assert seen(place) == ("first", [".result.partial", "result"])
    assert (place.partial / place.mark).read_text() == "second"


def test_only_one_writer_may_write_at_a_time(place: Place) -> None:
    with WriterLock(place.target), pytest.raises(BundleError, match="written by process"):
        write(place, "second")
