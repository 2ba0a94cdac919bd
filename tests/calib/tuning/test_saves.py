"""A save of an interrupted tuning is not resumed if any of its files is damaged."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from skipdec.calib.tuning.work import REPORT_NAME, SEAL_NAME, TuningDirectories, seal_save
from skipdec.engines.errors import UsageError

FILES = ("model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json")

DAMAGES: dict[str, Callable[[Path], object]] = {
    "removed": Path.unlink,
    "emptied": lambda path: path.write_bytes(b""),
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-3]),
    "zeroed": lambda path: path.write_bytes(bytes(path.stat().st_size)),
}


@pytest.fixture
def directories(tmp_path: Path) -> TuningDirectories:
    """Return the directories of a run that was killed after two saves, 5 and 10."""
    directories = TuningDirectories(tmp_path / "tuned")
    directories.begin({"seed": 0}, resumed=None)
    for step in (5, 10):
        save = directories.checkpoints / f"checkpoint-{step}"
        save.mkdir()
        for name in FILES:
            (save / name).write_text(f"{name} after {step}")
        seal_save(save)
    return directories


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", [*FILES, SEAL_NAME])
def test_a_damaged_save_falls_back_to_the_previous_one(
    name: str, damage: str, directories: TuningDirectories
) -> None:
    newest, older = (directories.checkpoints / f"checkpoint-{step}" for step in (10, 5))
    assert directories.last_save() == newest
    DAMAGES[damage](newest / name)
    assert directories.last_save() == older
    DAMAGES[damage](older / name)
    if name != SEAL_NAME or damage != "removed":  # else both saves could be incomplete
        with pytest.raises(UsageError, match=r"only damaged saves \(checkpoint-10, checkpoint-5\)"):
            directories.last_save()
    assert newest.is_dir(), "only a run deletes saves"


def test_resuming_deletes_later_saves_and_asks_for_the_same_options(
    directories: TuningDirectories,
) -> None:
    (directories.checkpoints / "checkpoint-10" / "optimizer.pt").unlink()
    resumed = directories.last_save()
    with pytest.raises(UsageError, match="seed is 1; the run began with 0"):
        directories.begin({"seed": 1}, resumed=resumed)
    directories.begin({"seed": 0}, resumed=resumed)
    assert [path.name for path in directories.checkpoints.iterdir()] == ["checkpoint-5"]


def test_a_failed_run_deletes_unfinished_saves(directories: TuningDirectories) -> None:
    """A save that filled the disk would keep it full."""
    newest, older = (directories.checkpoints / f"checkpoint-{step}" for step in (10, 5))
    directories.abandon()
    assert newest.is_dir(), "it can be resumed"
    (newest / SEAL_NAME).unlink()
    directories.abandon()
    assert [path.name for path in directories.checkpoints.iterdir()] == ["checkpoint-5"]
    (older / SEAL_NAME).unlink()
    directories.abandon()
    assert not directories.work.exists()


def test_other_options_are_refused_field_by_field(directories: TuningDirectories) -> None:
    data = {"format": "csv", "preset": "e2e"}
    (directories.work / "options.json").write_text(
        json.dumps({"data": data, "draft": None, "max_steps": 6})
    )
    options = {
        "data": data | {"format": "jsonl"},
        "draft": {"layers": "ends:3"},
        "max_steps": 8,
    }
    with pytest.raises(UsageError) as caught:
        directories.begin(options, resumed=directories.last_save())
    assert caught.value.problems == (
        "data.format is 'jsonl'; the run began with 'csv'; resume with that",
        "draft.layers is 'ends:3'; the run began with None; resume with that",
        "max_steps is 8; the run began with 6, from which its learning rates follow; resume with "
        "that",
        f"or delete {directories.work} to start over, without --resume",
    )


@pytest.mark.parametrize("content", ["", "[]", '{"seed": '])
def test_damaged_options_are_refused_with_advice(
    content: str, directories: TuningDirectories
) -> None:
    (directories.work / "options.json").write_text(content)
    with pytest.raises(UsageError, match="start over, without --resume"):
        directories.begin({"seed": 0}, resumed=directories.last_save())


def test_an_interrupted_first_save_is_discarded(directories: TuningDirectories) -> None:
    for seal in directories.checkpoints.glob(f"*/{SEAL_NAME}"):
        seal.unlink()
    directories.check(force=False, resume=False)
    directories.begin({"seed": 0}, resumed=None)
    assert not list(directories.checkpoints.iterdir())


@pytest.mark.parametrize("killed_before", ["take", "rmtree"])
def test_the_next_run_deletes_leftovers_of_a_late_kill(
    killed_before: str, directories: TuningDirectories, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    def kill(*_: object, **__: object) -> None:
        raise Killed

    owner = shutil if killed_before == "rmtree" else type(directories.place)
    (directories.stage() / REPORT_NAME).write_text(json.dumps({"seconds": 1.5}))
    with monkeypatch.context() as patch:
        patch.setattr(owner, killed_before, kill)
        with pytest.raises(Killed):
            directories.publish()
    with pytest.raises(UsageError, match=r"pass --resume|pass --force") as caught:
        directories.check(force=False, resume=False)
    published = killed_before == "rmtree"
    assert ("pass --force" in str(caught.value)) == published
    assert directories.work.exists() == (not published)


def test_a_link_in_place_of_a_run_s_state_is_refused(tmp_path: Path) -> None:
    fresh = TuningDirectories(tmp_path / "fresh")
    (tmp_path / "elsewhere").mkdir()
    fresh.work.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UsageError, match="is a link to"):
        fresh.check(force=False, resume=False)
