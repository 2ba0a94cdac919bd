"""Run cpp_face.cpp, which tests ranges, callbacks and handles of skipdec.hpp."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from programs import built_program
from runtimes import LIBRARY


def test_handles_ranges_and_callbacks_work_as_documented(text_bundle: Path) -> None:
    done = subprocess.run(
        [built_program("cpp_face"), text_bundle],
        capture_output=True,
        text=True,
        env=os.environ | {"SKIPDEC_ONNXRUNTIME": str(LIBRARY)},
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
