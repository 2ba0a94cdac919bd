"""Run the script that times a running batch on a GPU, on a device of host memory."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from benchmarks.gpu import report as gpu_report
from benchmarks.gpu.report import RunningBatch

SCRIPT = Path(gpu_report.__file__).with_name("running_batch.py")


def test_a_running_batch_is_timed_and_its_texts_compared(exported: Callable[..., Path]) -> None:
    bundle = exported("pre_norm", quantize="int8", kernels="auto")
    sizes = ("3", "12", "8", "full", "linear:max=4,min=2")
    command = [sys.executable, str(SCRIPT), str(bundle), "rehearsal", *sizes]
    result = subprocess.run(command, check=True, capture_output=True, text=True)
    figures = RunningBatch(backend="onnxruntime", **json.loads(result.stdout))
    assert (figures.rows, figures.requests, figures.failed) == (3, 12, 0)
    assert figures.equal == figures.compared == 3
    assert min(figures.tokens_per_second, figures.static_tokens_per_second) > 0
    assert 1 < figures.mixing_loss < 2
