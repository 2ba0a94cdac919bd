"""Tuning on CUDA, if the machine has it, learns what the CPU learns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from machine_devices import require_device

from skipdec.calib.tuning.config import TuneConfig
from skipdec.calib.tuning.report import TuningReport
from skipdec.calib.tuning.tuning import tune


def tuned(output: Path, **changes: Any) -> TuningReport:  # noqa: ANN401
    names = ("Ant", "Bee", "Cat", "Dog", "Eel", "Fox", "Gnu", "Hen")
    rows = output.parent / "rows.jsonl"
    lines = ({"prompt": f"name[{name}]", "completion": f"{name} is a small pub."} for name in names)
    rows.write_text("".join(json.dumps(line) + "\n" for line in lines))
    values = {"data": {"path": rows}, "validation": rows, "max_steps": 20, "learning_rate": 5e-3}
    report = tune(TuneConfig(**{**values, "output": output, **changes}))
    assert report is not None
    return report


@pytest.mark.gpu
@pytest.mark.parametrize(
    "goal",
    [
        {"schedule": "linear:max=3,min=2,warmup=1", "distill": 0.5},
        {"draft": {"layers": "ends:2"}},
        {"draft_layer": True},
    ],
    ids=["schedule", "draft", "draft layer"],
)
def test_cuda_learns_what_the_cpu_learns(goal: dict[str, Any], tmp_path: Path) -> None:
    require_device("cuda")
    sizes = "layers=4,width=32,heads=2,positions=64"
    start = tmp_path / "start"
    tuned(start, from_scratch=sizes, vocab_size=300, schedule="full", device="cpu")
    reports = {
        device: tuned(tmp_path / device, model=str(start), device=device, **goal)
        for device in ("cpu", "auto")
    }
    assert reports["auto"].device.startswith("cuda")
    on_cpu, on_cuda = (reports[device].validation for device in ("cpu", "auto"))
    assert on_cpu is not None
    assert on_cuda is not None
    assert on_cuda.start_at_schedule == pytest.approx(on_cpu.start_at_schedule, rel=1e-3)
    assert on_cuda.tuned_at_schedule == pytest.approx(on_cpu.tuned_at_schedule, rel=0.02)
