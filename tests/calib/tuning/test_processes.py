"""Several processes reach the weights of one process that has their combined batches."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from skipdec.calib.tuning.config import TuneConfig
from skipdec.calib.tuning.tuning import tune

WORKER = Path(__file__).parents[2] / "support" / "calib" / "tuning_processes.py"
STEPS = 6
TOLERANCE = 1e-5  # gradients are summed in a different order


def settings(directory: Path, name: str, **changes: Any) -> dict[str, Any]:  # noqa: ANN401
    return {
        "model": str(directory / "start"),
        "data": {"path": str(directory / "rows.jsonl")},
        "schedule": "linear:max=3,min=2,warmup=1",
        "mixture": ["2x"],
        "output": str(directory / name),
        "max_steps": STEPS,
        "batch_size": 2,
        "learning_rate": 5e-3,
        "device": "cpu",
        **changes,
    }


def job(
    config: dict[str, Any], *, sharded: bool, stop_at: int | None = None, error: str | None = None
) -> dict[str, Any]:
    return {"sharded": sharded, "stop_at": stop_at, "error": error, "config": config}


def run_processes(jobs: list[dict[str, Any]], directory: Path) -> None:
    """Run all jobs in one pair of processes, which never outlive the test."""
    path = directory / "jobs.json"
    path.write_text(json.dumps(jobs))
    process = subprocess.Popen(
        [sys.executable, str(WORKER), str(path)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=300)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        pytest.fail(f"the processes hang\n{output}")
    assert process.returncode == 0, output


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the checkpoints of one process (``one``, ``one-adapted``) and of two by name."""
    directory = tmp_path_factory.mktemp("processes")
    (directory / "rows.jsonl").write_text(
        "".join(
            json.dumps({"prompt": f"name[{index}]", "completion": "a pub" + "." * index}) + "\n"
            for index in range(8)
        )
    )
    torch.set_num_threads(1)
    fresh = {"model": None, "from_scratch": "layers=4,width=32,heads=2,positions=48"}
    tune(TuneConfig(**settings(directory, "start", **fresh, vocab_size=300, schedule="full")))
    adapters = {"lora": 4}
    tune(TuneConfig(**settings(directory, "one", batch_size=4)))
    halted = {"save_steps": 3}  # within the second epoch of two steps
    jobs = [
        job(settings(directory, "replicated"), sharded=False),
        job(settings(directory, "sharded", **halted), sharded=True, stop_at=4),
        job(settings(directory, "sharded", **halted, resume=True), sharded=True),
    ]
    fast = {"learning_rate": 1e25, "warmup_fraction": 0}
    for sharded in (False, True):
        name = f"diverged-{sharded}"
        for logging_steps, error in ((1, "loss is nan"), (9, "not finite after step 6")):
            config = settings(directory, name, **fast, logging_steps=logging_steps)
            jobs.append(job(config, sharded=sharded, error=error))
    tune(TuneConfig(**settings(directory, "one-adapted", batch_size=4, **adapters)))
    jobs.append(job(settings(directory, "sharded-adapted", **adapters), sharded=True))
    run_processes(jobs, directory)
    return directory


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "one"),
    [("replicated", "one"), ("sharded", "one"), ("sharded-adapted", "one-adapted")],
)
def test_two_processes_equal_one_process_with_twice_the_batch(
    name: str, one: str, tuned: Path
) -> None:
    """The sharded run was interrupted after its first save, and resumed."""
    expected = load_file(tuned / one / "model.safetensors")
    weights = load_file(tuned / name / "model.safetensors")
    assert weights.keys() == expected.keys()
    for key, tensor in weights.items():
        torch.testing.assert_close(tensor, expected[key], rtol=0, atol=TOLERANCE)
    report = json.loads((tuned / name / "tuning_report.json").read_text())
    alone = json.loads((tuned / one / "tuning_report.json").read_text())
    assert report["processes"] == 2
    assert report["trained_parameters"] == alone["trained_parameters"]


@pytest.mark.slow
@pytest.mark.parametrize("sharded", [False, True])
def test_every_process_ends_in_an_error_where_a_run_diverges(sharded: bool, tuned: Path) -> None:
    """Each process checked its own error without waiting for another."""
    assert not list(tuned.glob(f"*diverged-{sharded}*"))
