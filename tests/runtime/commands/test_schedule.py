"""``skipdec schedule`` prints JSON and tables, draws pictures and sets exit codes."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import command_line
import matplotlib
import pytest
from hollow_bundles import write_hollow_bundle

from skipdec import write_schedule
from skipdec.engines.bundle import EngineBundle
from skipdec.engines.errors import BundleError, ScheduleError, UsageError
from skipdec.runtime.schedule import ExitSchedule
from skipdec.runtime.schedule.plot import plot_schedule, schedule_cells
from skipdec.runtime.schedule.text import parse_schedule

run = partial(command_line.run, "schedule")


def test_show_json_describes_every_segment() -> None:
    result = run("show", "linear:max=4,min=2,horizon=4", "--layers", "6", "--json")
    shown = json.loads(result.stdout)
    assert [(run["start"], run["stop"], run["layers"]) for run in shown["segments"]] == [
        (0, 1, [0, 3, 4, 5]),
        (1, 3, [0, 4, 5]),
        (3, None, [0, 5]),
    ]
    assert shown["prompt_only_layers"] == [1, 2]
    assert ExitSchedule.from_document(shown["schedule"]).num_layers == 6


def test_json_of_show_is_a_schedule_file(tmp_path: Path) -> None:
    file = tmp_path / "s.json"
    text = run("show", "2x:horizon=24", "--layers", "12", "--json").stdout
    file.write_text(text)
    again = run("show", str(file), "--layers", "12", "--json")
    assert again.stdout == text
    assert json.loads(text)["text"] == "linear:max=8,min=4,warmup=1,horizon=24"
    file.write_text(
        text.replace('"start": 0', '"start": 1')
    )  # contradicts the layers that would run
    assert "the file was changed" in run("show", str(file), "--layers", "12").stderr


def test_show_prints_a_table() -> None:
    result = run("show", "2x", "--layers", "24")
    assert result.exit_code == 0
    assert "linear:max=16,min=8,warmup=1,horizon=64" in result.stdout
    assert "0, 9–23" in result.stdout
    assert "12.00 of 24 layers" in result.stdout


def test_a_bundle_shows_its_own_schedule(tmp_path: Path) -> None:
    own = ExitSchedule(num_layers=12, max_exit_layer=9, min_exit_layer=3, horizon=32)
    bundle = write_hollow_bundle(tmp_path / "bundle", own).path
    shown = json.loads(run("show", str(bundle), "--json").stdout)
    assert ExitSchedule.from_document(shown["schedule"]) == own
    assert run("plot", str(bundle), "-o", str(tmp_path / "own.svg")).exit_code == 0
    refused = run("show", str(bundle), "--layers", "24")
    assert (refused.exit_code, "omit --layers" in refused.stderr) == (2, True)
    assert "is not a bundle" in run("show", str(tmp_path), "--layers", "24").stderr


def test_show_without_layers_is_refused() -> None:
    result = run("show", "2x")
    assert (result.exit_code, "needs --layers" in result.stderr) == (2, True)


def test_show_and_plot_report_the_same_mean(tmp_path: Path) -> None:
    picture = tmp_path / "2x.svg"
    with matplotlib.rc_context({"svg.fonttype": "none"}):
        run("plot", "2x", "--layers", "12", "-o", str(picture))
    assert "mean 6.00 of 12 layers over 64 tokens" in picture.read_text()
    shown = run("show", "2x", "--layers", "12").stdout
    assert "mean over 64 tokens: 6.00 of 12 layers" in shown
    shown = run("show", "full", "--layers", "12").stdout
    assert "mean over 1 token: 12.00 of 12 layers" in shown


def test_a_bad_schedule_exits_2_with_the_reason_on_stderr() -> None:
    result = run("show", "9x", "--layers", "12")
    assert result.exit_code == 2
    assert "largest possible: 6x" in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize(("ending", "magic"), [("png", b"\x89PNG"), ("svg", b"<?xml")])
def test_plot_writes_the_same_picture_twice(tmp_path: Path, ending: str, magic: bytes) -> None:
    pictures = [tmp_path / f"{name}.{ending}" for name in ("first", "second")]
    for picture in pictures:
        assert run("plot", "2x", "--layers", "12", "-o", str(picture)).exit_code == 0
    assert pictures[0].read_bytes().startswith(magic)
    assert pictures[0].read_bytes() == pictures[1].read_bytes()


def test_plot_replaces_a_file_only_with_force(tmp_path: Path) -> None:
    picture = tmp_path / "notes.svg"
    picture.write_text("mine")
    command = ("plot", "2x", "--layers", "12", "-o", str(picture))
    refused = run(*command)
    assert (refused.exit_code, "pass --force to replace it" in refused.stderr) == (2, True)
    assert picture.read_text() == "mine"
    assert run(*command, "--force").exit_code == 0
    assert picture.read_text().startswith("<?xml")


@pytest.mark.parametrize(
    ("picture", "text"), [("picture.bmp", ".png, .svg"), ("none/picture.png", "is not a directory")]
)
def test_plot_refuses_other_formats_and_missing_folders(
    tmp_path: Path, picture: str, text: str
) -> None:
    result = run("plot", "2x", "--layers", "12", "-o", str(tmp_path / picture))
    assert result.exit_code == 2
    assert text in result.stderr


@pytest.mark.parametrize("content", [None, "", '{"schedule": "2x"}'])
def test_set_repairs_a_missing_or_damaged_schedule(tmp_path: Path, content: str | None) -> None:
    bundle = write_hollow_bundle(tmp_path / "bundle", ExitSchedule.full(12)).path
    file = bundle / "schedule.json"
    file.unlink()
    if content is not None:
        file.write_text(content)
    with pytest.raises(BundleError, match="write it with 'skipdec schedule set'"):
        EngineBundle.open(bundle)
    assert run("set", str(bundle), "2x:horizon=8").exit_code == 0
    assert EngineBundle.open(bundle).schedule_document["horizon"] == 8


@pytest.mark.parametrize("arguments", [("2x:horizon=257",), ("2x", "--horizon", "257")])
def test_set_refuses_a_horizon_beyond_the_positions(
    tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    bundle = write_hollow_bundle(tmp_path / "bundle", ExitSchedule.full(12)).path
    result = run("set", str(bundle), *arguments)
    assert result.exit_code == 2
    assert "horizon is 257; allowed: 1 to 256, the bundle's positions" in result.stderr
    assert ExitSchedule.from_document(EngineBundle.open(bundle).schedule_document).is_full


def test_write_schedule_refuses_another_depth(tmp_path: Path) -> None:
    bundle = write_hollow_bundle(tmp_path / "bundle", ExitSchedule.full(12)).path
    num_layers = EngineBundle.read_manifest(bundle).model.num_layers
    text = parse_schedule("2x", num_layers=num_layers, horizon=8)
    for schedule in (text, text.to_document(), "2x:horizon=8"):
        assert write_schedule(str(bundle), schedule) == text
        assert EngineBundle.open(bundle).schedule_document == text.to_document()
    deeper = ExitSchedule.full(num_layers + 1)
    for schedule in (deeper, deeper.to_document(), None):
        with pytest.raises(ScheduleError):
            write_schedule(str(bundle), schedule)  # type: ignore[arg-type]
    assert EngineBundle.open(bundle).schedule_document == text.to_document()
    with pytest.raises(BundleError, match="does not exist"):
        write_schedule(tmp_path / "none", "full")


def test_plot_refuses_too_many_tokens(tmp_path: Path) -> None:
    picture = tmp_path / "long.png"
    result = run("plot", "2x", "--layers", "16", "--tokens", str(10**12), "-o", str(picture))
    assert result.exit_code == 2
    assert "1,000,000,000,000 tokens of 16 layers; allowed: 1 to 4,194,304 tokens" in result.stderr
    for tokens in (0, -3):
        with pytest.raises(UsageError, match=f"has {tokens} tokens of 16 layers; allowed: 1 to"):
            plot_schedule(ExitSchedule.full(16), picture, num_tokens=tokens)
    assert not picture.exists()


def test_show_has_the_first_and_last_token_of_a_decaying_prompt() -> None:
    result = run("show", "2x:prompt=decay", "--layers", "24")
    rows = [line for line in result.stdout.splitlines() if "prompt," in line]
    assert ["24" in rows[0], "0–23" in rows[0], "16" in rows[1], "0, 9–23" in rows[1]] == [True] * 4


def test_cells_of_a_decaying_prompt_follow_its_budgets() -> None:
    schedule = ExitSchedule(
        num_layers=4, max_exit_layer=2, min_exit_layer=2, horizon=1, prompt="decay"
    )
    assert schedule_cells(schedule, 1).tolist() == [
        [1, 1, 1, 2],
        [1, 0, 0, 0],
        [1, 1, 0, 0],
        [1, 1, 1, 3],
    ]


def test_cells_show_prompt_warmup_and_running_layers() -> None:
    schedule = ExitSchedule(num_layers=4, max_exit_layer=3, min_exit_layer=2, horizon=2)
    assert schedule_cells(schedule, 3).tolist() == [
        [1, 2, 2, 2],
        [1, 0, 0, 0],
        [1, 3, 0, 0],
        [1, 3, 3, 3],
    ]
