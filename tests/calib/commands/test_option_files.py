"""Run the files for ``--config`` that the documentation shows."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from command_line import run

PAGE = Path(__file__).parents[3] / "docs" / "guides" / "your-model.md"


def test_the_documented_option_files_tune_and_export(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tune, export = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (tmp_path / "tune.yaml").write_text(tune)
    (tmp_path / "export.yaml").write_text(export)
    rows = [{"prompt": "a", "completion": "b"}, {"prompt": "x" * 200, "completion": "y"}]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "opt-e2e").symlink_to(model)
    monkeypatch.chdir(tmp_path)
    tuned = run("tune", "--config", "tune.yaml", "--max-steps", 1)
    assert tuned.exit_code == 0, tuned.stderr
    assert "left out, too long: 1 of 2 rows" in tuned.stderr
    report = json.loads(Path("opt-e2e-2x/tuning_report.json").read_text())
    assert report["config"]["gradient_accumulation"] == 4
    planned = run("export", "--config", "export.yaml", "--dry-run", "--json")
    assert planned.exit_code == 0, planned.stderr
    precision = json.loads(planned.stdout)["precision"]
    assert (precision["quantize"], precision["head_quantize"]) == ("int8", "none")
