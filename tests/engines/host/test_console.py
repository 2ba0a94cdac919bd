"""Tables of results: no width cuts a number, and pipes get unwrapped lines."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hollow_bundles import write_hollow_bundle
from rich.console import Console

from skipdec.engines.host.console import (
    escaped,
    markdown_table,
    print_facts,
    print_markdown,
    print_table,
    result_console,
)
from skipdec.runtime.commands import bench, doctor, inspect
from skipdec.runtime.schedule import ExitSchedule

LONG = "exponential:max=11,min=5,warmup=1,horizon=27,placement=unified-nested,rate=3"
NUMBERS = [f"{1000 + place}.{place}×" for place in range(9)]


def console_of(width: int) -> Console:
    return Console(width=width, file=io.StringIO(), highlight=False, markup=False, soft_wrap=True)


def printed(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    lines = [line.rstrip() for line in console.file.getvalue().splitlines()]
    assert max(map(len, lines)) <= console.width
    return "\n".join(lines)


@pytest.mark.parametrize("width", [120, 100, 80, 60, 40])
@pytest.mark.parametrize("count", [2, 5, 9])
def test_numbers_are_whole_and_texts_complete_at_every_width(width: int, count: int) -> None:
    console = console_of(width)
    numbers = NUMBERS[:count]
    headings = ["schedule", *(f"speed-up\nof {number}" for number in numbers)]
    print_table(console, headings, [["full", *numbers], [LONG, *numbers]], bold=[1])
    text = printed(console)
    assert all(len(re.findall(rf"(?<!of ){re.escape(number)}", text)) == 2 for number in numbers)
    assert LONG in re.sub(r"\d{4}\.\d×|\s", "", text)


def test_a_table_that_is_too_wide_is_turned_and_stays_short() -> None:
    console = console_of(80)
    headings = ["bundle", "schedule", *(f"figure {place}" for place in range(11))]
    figures = ["69.1 [66.8, 71.2]"] * 11
    print_table(console, headings, [["a", text, *figures] for text in ("full", "2x", "4x")])
    lines = [line for line in printed(console).splitlines() if line]
    assert len(lines) == 13
    assert lines[1].split() == ["schedule", "full", "2x", "4x"]
    assert all(line.count("69.1 [66.8, 71.2]") == 3 for line in lines[2:])


def test_a_turned_table_goes_on_below_where_its_columns_do_not_fit() -> None:
    console = console_of(60)
    rows = [[f"row {place}", *NUMBERS] for place in range(9)]
    print_table(console, ["name", *(f"figure {number}" for number in NUMBERS)], rows)
    begins = [line.split("  ")[0] for line in printed(console).splitlines() if line]
    assert begins.count("name") == 2
    assert len(begins) == 20


def test_a_pipe_gets_one_line_a_row(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(result_console(), ["schedule", *NUMBERS], [[LONG * 3, *NUMBERS]])
    _heading, row = capsys.readouterr().out.splitlines()
    assert row.split() == [LONG * 3, *NUMBERS]
    assert len(row) < 400


def test_facts_are_one_line_each_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    print_facts(result_console(), [("model", LONG * 3, ""), ("source", "x", "yellow")])
    assert capsys.readouterr().out == f"model   {LONG * 3}\nsource  x\n"


MARKDOWN = f"""3 prompts, greedy.

{
    markdown_table(
        ["bundle", "schedule", "speed-up", "BLEU"],
        [
            ["a", escaped(f"a|b <{LONG}>"), "2.00×", "69.1 [66.8, 71.2]"],
        ],
    )
}
"""


def test_markdown_fits_a_terminal_and_is_itself_in_a_pipe(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_markdown(result_console(), MARKDOWN)
    assert capsys.readouterr().out == MARKDOWN
    file = io.StringIO()
    print_markdown(Console(width=60, file=file, force_terminal=True, no_color=True), MARKDOWN)
    text = re.sub(r"\x1b\[[\d;]*m", "", file.getvalue())
    assert "69.1 [66.8, 71.2]" in text
    assert max(map(len, text.splitlines())) <= 60
    assert f"a|b<{LONG}>" in re.sub(r"\s|2\.00×|69\.1 \[66.8, 71\.2\]", "", text)


def measurement(name: str) -> dict[str, Any]:
    numbers = ("time_to_first_token", "step_milliseconds_p50", "step_milliseconds_p95")
    numbers += ("tokens_per_second", "wall_seconds", "speedup", "decode_speedup")
    bounds = {"speedup_interval": [1234.56] * 2, "decode_speedup_interval": [1234.56] * 2}
    numbers += ("bytes_ratio", "bandwidth_fraction", "best_bandwidth_fraction")
    facts = {"batch_size": 8, "name": name, "schedule": name, "realised_depth": 12.0}
    runtime = {"runtime": "native", "of_python": 0.93}
    return facts | runtime | dict.fromkeys(numbers, 1234.56) | bounds | {"turns": 9}


@pytest.mark.parametrize("runtime", ["python", "native"])
@pytest.mark.parametrize("width", [100, 80, 60])
def test_bench_inspect_and_doctor_keep_their_figures(
    width: int, runtime: str, tmp_path: Path
) -> None:
    schedule = ExitSchedule(num_layers=12, max_exit_layer=9, min_exit_layer=3, horizon=32)
    bundle = write_hollow_bundle(tmp_path / "bundle", schedule).path
    console = console_of(width)
    document = {
        "model": "opt",
        "threads": 2,
        "kernels": "onnxruntime",
        "config": {"prompt_length": 1, "num_tokens": 2, "prompts": None, "runtime": runtime},
        "measurements": [measurement("full"), measurement("linear:max=8,min=4,horizon=24")],
        "bandwidth_bytes_per_second": 1e9,
        "bandwidth_passes": 10,
        "probe_is_valid": True,
    }
    with patch.object(bench, "result_console", lambda: console):
        bench._print_report(document)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert text.count("1234.56×") == 6
    assert text.count("0.93×") == (2 if runtime == "native" else 0)
    inspected = console_of(width)
    with patch.object(inspect, "result_console", lambda: inspected):
        inspect.inspect(bundle, [inspect.Section.SCHEDULE], None, 1, 128, 64, False)
    text = inspected.file.getvalue()  # type: ignore[attr-defined]
    assert len(re.findall(r"\d\.\d\d×", text)) == 6
    assert "…" not in text
    examined = console_of(width)
    with patch.object(doctor, "result_console", lambda: examined):
        doctor.doctor(threads=None, bandwidth=False, as_json=False)
    assert "…" not in printed(examined)
