"""Other results are replaced as safely as bundles: a killed swap is completed or undone."""

from __future__ import annotations

from pathlib import Path

import pytest

from skipdec.calib.evaluation.report import evaluation_place
from skipdec.calib.rounding.files import rounded_place
from skipdec.calib.tuning.work import TuningDirectories
from skipdec.engines.bundle import place as bundle_place
from skipdec.engines.bundle.place import Place, WriterLock
from skipdec.engines.errors import BundleError, UsageError


def tuned_place(output: Path) -> Place:
    return TuningDirectories(output).place


@pytest.fixture(params=[tuned_place, rounded_place, evaluation_place])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    made = request.param(tmp_path / "result")
    assert isinstance(made, Place)
    return made


def write(place: Place, content: str, *, force: bool = False) -> None:
    with place.replaced(force=force) as directory:
        (directory / place.mark).write_text(content)


def seen(place: Place) -> tuple[str, list[str]]:
    """Return the mark's content and the names beside the result."""
    names = sorted(path.name for path in place.target.parent.iterdir())
    return (place.target / place.mark).read_text(), names


def test_a_result_that_was_half_deleted_is_out_of_the_way(place: Place) -> None:
    write(place, "first")
    (place.old / "weights").mkdir(parents=True)  # killed while it deleted: its mark went first
    write(place, "second", force=True)
    assert seen(place) == ("second", ["result"])


def test_a_swap_killed_between_its_renames_is_undone_before_the_next(
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
    assert seen(place) == ("first", ["result"]), "the only copy is not lost"
    monkeypatch.setattr(bundle_place, "exchange", lambda first, second: False)
    write(place, "second", force=True)
    assert seen(place) == ("second", ["result"])


def test_an_error_leaves_what_was_there(place: Place) -> None:
    write(place, "first")
    with pytest.raises(TypeError):
        write(place, None, force=True)  # type: ignore[arg-type]
    assert seen(place) == ("first", ["result"])


def test_one_writes_at_a_time(place: Place) -> None:
    with WriterLock(place.target), pytest.raises(BundleError, match="written by process"):
        write(place, "second")
