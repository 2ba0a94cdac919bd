"""Try once whether a TensorRT builds and runs a model on this GPU, and print its words as JSON.

    python scripts/benchmarks/gpu/tensorrt_attempt.py tensorrt-rtx opt-125m /tmp/work 12.0

exports the model with random weights, builds its plans for the GPU of this machine (or for a given
compute capability), and measures them. Every end is a result: TensorRT-RTX does not list compute
capability 9.0, and what it says there is what this attempt is for.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.process import skipdec_command
from skipdec.engines.host.installation import missing_modules

_SHOWN = 1500  # last characters of its words
_POSITIONS = 192


def main() -> None:
    """Export, build and measure up to the first step that fails."""
    target, model, work, *arch = sys.argv[1:]
    if missing := list(missing_modules(target)):
        words = f"not installed: {', '.join(missing)}"
        print(json.dumps({"target": target, "done": [], "words": words}))
        return
    exported, plans = Path(work) / f"{model}-canonical", Path(work) / f"{model}-{target}"
    shutil.rmtree(plans, ignore_errors=True)
    steps = {
        "export": (
            *("export", model, "-o", str(exported), "--fp16", "--load-format=dummy"),
            *("--keep-canonical", "--no-verify", "--kernels=onnxruntime", "--force"),
            f"--max-seq-len={_POSITIONS}",
        ),
        "build": (
            *("build", str(exported), f"--target={target}", "-o", str(plans)),
            *("--max-batch-size=8", "--max-prompt-len=128"),
            *(f"--gpu-arch={one}" for one in arch),
        ),
        "run": ("bench", str(plans), "--batch-sizes=1", "--schedule=5x", "--json"),
    }
    result: dict[str, Any] = {"target": target, "done": [], "words": ""}
    for name, arguments in steps.items():
        ended = subprocess.run(skipdec_command(*arguments), capture_output=True, text=True)
        if ended.returncode:
            result["words"] = f"{name} ended with {ended.returncode}: {ended.stderr[-_SHOWN:]}"
            break
        result["done"].append(name)
        if name == "run":
            result["measurements"] = json.loads(ended.stdout)["measurements"]
    print(json.dumps(result))


if __name__ == "__main__":
    main()
