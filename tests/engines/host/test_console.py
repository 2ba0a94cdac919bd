"""Tables never cut a number at any width, and pipes get unwrapped lines."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
from command_line import run
from hollow_bundles import write_hollow_bundle
from reports import shown

from skipdec.engines.host.console import Table, facts, markdown_report, number, result_console
from skipdec.runtime.commands import doctor
from skipdec.runtime.schedule import ExitSchedule

LONG = "exponential:max=11,min=5,warmup=1,horizon=27,placement=unified-nested,rate=3"
NUMBERS = [f"{1000 + index}.{index}×" for index in range(9)]


@pytest.mark.parametrize("width", [120, 60, 40])
@pytest.mark.parametrize("count", [2, 5, 9])
def test_numbers_are_whole_and_texts_complete_at_every_width(width: int, count: int) -> None:
    numbers = NUMBERS[:count]
    headings = ["schedule", *(f"speed-up\nof {number}" for number in numbers)]
    text = shown([Table(headings, [["full", *numbers], [LONG, *numbers]], bold=[1])], width)
    assert all(len(re.findall(rf"(?<!of ){re.escape(number)}", text)) == 2 for number in numbers)
    assert LONG in re.sub(r"\d{4}\.\d×|\s", "", text)


def test_a_pipe_gets_one_line_per_row(capsys: pytest.CaptureFixture[str]) -> None:
    Table(["schedule", *NUMBERS], [[LONG * 3, *NUMBERS]]).print(result_console())
    _heading, row = capsys.readouterr().out.splitlines()
    assert row.split() == [LONG * 3, *NUMBERS]
    assert len(row) < 400


def test_a_pipe_gets_one_line_per_fact(capsys: pytest.CaptureFixture[str]) -> None:
    facts([("model", LONG * 3), ("source", ""), ("size", "x")]).print(result_console())
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert lines == [f"model  {LONG * 3}", "size   x"]


def test_markdown_shows_cells_literally() -> None:
    parts = [
        "3 <prompts>, greedy.",
        Table(["a", "b"], [["a|b <c>", "[1, 2]"], ["**d** `e\\", "[f](g)"]]),
    ]
    table = "| a | b |\n| --- | --- |\n| a\\|b &lt;c&gt; | [1, 2] |\n"
    table += r"| \*\*d\*\* \`e\\ | [f\](g) |"
    assert markdown_report(parts) == f"3 &lt;prompts&gt;, greedy.\n\n{table}\n"


@pytest.mark.parametrize("width", [100, 60])
def test_inspect_and_doctor_never_cut_a_figure(
    width: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    schedule = ExitSchedule(num_layers=12, max_exit_layer=9, min_exit_layer=3, horizon=32)
    bundle = write_hollow_bundle(tmp_path / "bundle", schedule).path
    figures = run("inspect", bundle, "--show", "schedule").stdout
    doctor.doctor(threads=None, bandwidth=False, as_json=False)
    text = figures + capsys.readouterr().out
    assert len(re.findall(r"\d\.\d\d×", text)) == 6
    assert "…" not in text


@pytest.mark.parametrize(
    ("value", "text"), [(-1e-9, "+0.00"), (0.125, "+0.12"), (-2.0, "-2.00"), (math.nan, "–")]
)
def test_figures_are_never_negative_zero(value: float, text: str) -> None:
    assert number(value, 2, signed=True) == text
