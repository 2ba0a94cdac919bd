"""Test the thread pools of ONNX Runtime; the process-wide pool needs processes of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import one_operator
import pytest

from skipdec.engines.kernels.library import find_library


def run_python(code: str, *arguments: str) -> str:
    process = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return process.stdout + process.stderr


def test_onnxruntime_writes_no_telemetry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("ORT_DISABLE_TELEMETRY")  # set in this process
    assert run_python("import skipdec; skipdec.use_shared_thread_pool(1)") == ""
    assert not list(tmp_path.iterdir())


def test_a_thread_pool_set_by_another_library_is_refused_with_advice() -> None:
    output = run_python(
        "import onnxruntime, skipdec\n"
        "from skipdec.engines.backends.ort import session_options\n"
        "onnxruntime.set_global_thread_pool_sizes(1, 1)\n"
        "skipdec.use_shared_thread_pool(1)\n"
        "session_options(1, needs_pool=True)\n"
    )
    assert "EnvironmentMismatchError" in output
    assert "in place of onnxruntime.set_global_thread_pool_sizes" in output


def test_a_thread_pool_is_created_once_for_all_later_sessions(
    exported: Callable[..., Path],
) -> None:
    output = run_python(
        "import sys, skipdec\n"
        "from skipdec.engines.backends import ort\n"
        "from skipdec.engines.bundle import EngineBundle\n"
        "skipdec.use_shared_thread_pool(1)\n"
        "skipdec.use_shared_thread_pool(1)\n"
        "options = ort.session_options(1)\n"
        "print(options.use_per_session_threads)\n"
        "for needs_pool in (True, True, False):\n"
        "    print(ort.session_options(1, needs_pool=needs_pool).use_per_session_threads)\n"
        "bundle = EngineBundle.open(sys.argv[1])\n"
        "spec = bundle.manifest.embed\n"
        "ort.open_session(bundle, spec, options, ['CPUExecutionProvider'])  # had options before\n"
        "print(options.use_per_session_threads)\n"
        "ort.OrtBackend(threads=1)\n"
        "ort.OrtBackend()\n"
        "for refused in (skipdec.use_shared_thread_pool, ort.OrtBackend):\n"
        "    try:\n"
        "        refused(2)\n"
        "    except skipdec.SkipDecError as error:\n"
        "        print(error)\n",
        str(exported("pre_norm", kernels="onnxruntime")),
    )
    *per_session, pool, backend = output.splitlines()
    assert per_session == ["True", *["False"] * 4]
    assert "asked for 2 threads, this process already shares 1" in pool
    assert "threads | is 2, but this process shares a pool of 1" in backend


@pytest.mark.skipif(find_library() is None, reason="the kernels were not compiled")
def test_a_session_without_memory_for_its_threads_is_refused() -> None:
    output = run_python(
        "import resource, sys, numpy as np\n"
        "from pathlib import Path\n"
        "sys.path.append(sys.argv[1])\n"
        "from one_operator import operator_session\n"
        "pages = int(Path('/proc/self/statm').read_text().split()[0])\n"
        "limit = pages * resource.getpagesize() + 120_000_000\n"
        "resource.setrlimit(resource.RLIMIT_AS, (limit, limit))\n"
        "scale = {'scale': np.ones(64, np.float32)}\n"
        "operator_session('LayerNorm', ['x', 'scale'], scale, {'epsilon': 1e-5}, threads=64)\n",
        str(Path(one_operator.__file__).parent),
    )
    assert "Resource temporarily unavailable" in output
