"""Run the commands and programs of README.md, the quickstart and two guides as written."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest
from page_blocks import ROOT, blocks, run_commands, run_python, skipdec_commands

from skipdec.engines.bundle import EngineBundle


@pytest.mark.slow
@pytest.mark.pages
def test_commands_on_the_pages_run_and_print_what_the_pages_show(tmp_path: Path) -> None:
    write_examples(tmp_path)
    shutil.copy(ROOT / "examples" / "restaurants.jsonl", tmp_path / "examples")
    _, first_steps = blocks("README.md", "sh", "Try it")
    (loop,) = blocks("README.md", "sh", "Your own model")
    assert blocks("docs/guides/your-model.md", "sh") == [loop]
    pages = {
        "README.md": first_steps,
        "docs/quickstart.md": "\n".join(blocks("docs/quickstart.md", "sh")),
    }
    commands = [skipdec_commands(text) for text in (*pages.values(), loop)]

    printed = run_commands([command for page in commands for command in page], tmp_path)

    for page, page_commands in zip(pages, commands, strict=False):
        texts = [printed[command] for command in page_commands if command[0] == "generate"]
        assert "".join(texts) == blocks(page, "text")[0]
    fitted = json.loads((tmp_path / "fitted.json").read_text())["schedule"]
    assert EngineBundle.open(tmp_path / "places-int8").schedule_document == fitted
    assert_quality_stays_at_the_tuned_schedules(tmp_path)
    assert printed[commands[-1][-1]].count(" ") >= 4

    for page in ("README.md", "docs/guides/generate.md"):
        (program,) = blocks(page, "python")
        assert "Blue Spice" in run_python(program, tmp_path)


@pytest.mark.slow
@pytest.mark.pages
def test_the_program_tunes_exports_evaluates_fits_and_writes(tmp_path: Path) -> None:
    (program,) = blocks("docs/guides/python.md", "python")
    write_examples(tmp_path)
    lines = run_python(program, tmp_path).splitlines()
    assert [line.split()[0] for line in lines[1:4]] == ["full", "2x", "3x"]
    assert lines[-1].count(" ") >= 4  # a sentence; its words differ between processors


def write_examples(directory: Path) -> None:
    """Write all training rows and 16 of the 64 held-out prompts to ``directory / "examples"``."""
    (directory / "examples").mkdir()
    for name in ("restaurants", "train.jsonl"):
        (directory / "examples" / name).symlink_to(ROOT / "examples" / name)
    with (ROOT / "examples" / "dev.jsonl").open(encoding="utf-8") as rows:
        held_out = "".join(islice(rows, 16 * 3))
    (directory / "examples" / "dev.jsonl").write_text(held_out, encoding="utf-8")


def assert_quality_stays_at_the_tuned_schedules(directory: Path) -> None:
    """Compare the loop with the figures of your-model.md, loosely for only 16 prompts."""
    tuned = json.loads((directory / "places" / "tuning_report.json").read_text())["validation"]
    assert max(tuned["tuned_at_schedule"], tuned["tuned_at_full"]) < 0.3  # nats per token
    evaluated = json.loads((directory / "results" / "evaluation.json").read_text())["rows"]
    bleu = {row["schedule"]: row["metrics"]["bleu"]["estimate"]["value"] for row in evaluated}
    assert bleu["full"] > 95
    assert min(bleu["2x"], bleu["3x"]) > bleu["full"] - 5


def test_the_script_writes_the_example_rows(tmp_path: Path) -> None:
    script = ROOT / "scripts" / "data" / "example_rows.py"
    subprocess.run([sys.executable, str(script), str(tmp_path)], check=True, timeout=60)
    for name in ("train.jsonl", "dev.jsonl"):
        assert (tmp_path / name).read_bytes() == (ROOT / "examples" / name).read_bytes()
