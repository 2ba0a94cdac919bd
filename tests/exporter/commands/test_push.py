"""``skipdec push`` checks bundles and checkpoints before sending anything."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from command_line import run
from fake_hub import FakeHub, fake_hub
from hollow_bundles import write_hollow_bundle
from typer.testing import Result

from skipdec.runtime.schedule import ExitSchedule

REPO = "me/tiny"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    with fake_hub(monkeypatch) as served:
        yield served


@pytest.fixture
def directory(checkpoint: Callable[[str], Path], tmp_path: Path) -> Path:
    """Return a copy of a tiny checkpoint, with a hidden file."""
    copy = Path(shutil.copytree(checkpoint("pre_norm"), tmp_path / "tiny"))
    (copy / ".secret").write_text("mine")
    return copy


def push(*arguments: object) -> Result:
    return run("push", *arguments)


def test_a_checkpoint_is_pushed_without_hidden_files(directory: Path, hub: FakeHub) -> None:
    result = push(directory, REPO, "--revision", "two-times", "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["url"].startswith(f"{hub.endpoint}/{REPO}/commit/")
    pushed = hub.branches[f"{REPO}@two-times"]
    assert pushed == {
        path.name: path.read_bytes() for path in directory.iterdir() if path.name[0] != "."
    }


@pytest.mark.parametrize(("card", "is_said"), [(None, True), ("license: mit", False)])
def test_a_bundle_is_pushed_and_a_missing_licence_said(
    card: str | None, is_said: bool, tmp_path: Path, hub: FakeHub
) -> None:
    bundle = write_hollow_bundle(tmp_path / "bundle", ExitSchedule.full(2)).path
    if card is not None:
        (bundle / "README.md").write_text(f"---\n{card}\n---\n")
    result = push(bundle, REPO, "--private")
    assert result.exit_code == 0, result.output
    assert "manifest.json" in hub.branches[f"{REPO}@main"]
    assert ("names no licence" in result.stderr) == is_said


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (lambda path: (path / "config.json").unlink(), "no config.json"),
        (lambda path: (path / "model.safetensors").write_bytes(b"x"), "model.safetensors"),
        (shutil.rmtree, "is not a directory"),
    ],
)
def test_damaged_checkpoints_are_not_sent(
    damage: Callable[[Path], object], text: str, directory: Path, hub: FakeHub
) -> None:
    damage(directory)
    result = push(directory, REPO)
    assert result.exit_code in (1, 2)
    assert text in result.stderr
    assert not hub.branches
