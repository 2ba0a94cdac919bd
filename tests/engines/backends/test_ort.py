"""Thread pools of the ONNX Runtime backend; the process-wide one runs in its own processes."""

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


def test_onnxruntime_collects_no_facts_for_its_maker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("ORT_DISABLE_TELEMETRY")  # which this process has set
    assert run_python("import skipdec; skipdec.use_shared_thread_pool(1)") == ""
    assert not list(tmp_path.iterdir())


def test_shared_pool_is_idempotent_and_refuses_another_size() -> None:
    output = run_python(
        "import skipdec\n"
        "skipdec.use_shared_thread_pool(1)\n"
        "skipdec.use_shared_thread_pool(1)\n"
        "skipdec.use_shared_thread_pool(2)\n"
    )
    assert "asked for 2 threads, this process already shares 1" in output


def test_a_pool_that_someone_else_shares_is_an_error_that_says_what_to_do() -> None:
    output = run_python(
        "import onnxruntime, skipdec\n"
        "from skipdec.engines.backends.ort import session_options\n"
        "onnxruntime.set_global_thread_pool_sizes(1, 1)\n"
        "skipdec.use_shared_thread_pool(1)\n"
        "session_options(1, needs_pool=True)\n"
    )
    assert "EnvironmentMismatchError" in output
    assert "in place of onnxruntime.set_global_thread_pool_sizes" in output


def test_a_shared_pool_is_made_for_the_first_session_that_needs_it() -> None:
    output = run_python(
        "import skipdec\n"
        "from skipdec.engines.backends.ort import session_options\n"
        "skipdec.use_shared_thread_pool(1)\n"
        "print(session_options(1).use_per_session_threads)\n"
        "print(session_options(1, needs_pool=True).use_per_session_threads)\n"
        "print(session_options(1).use_per_session_threads)\n"
    )
    assert output.split() == ["True", "False", "False"]


def test_backend_refuses_a_size_other_than_the_shared_one() -> None:
    output = run_python(
        "import skipdec\n"
        "from skipdec.engines.backends.ort import OrtBackend\n"
        "skipdec.use_shared_thread_pool(2)\n"
        "OrtBackend(threads=2)\n"
        "OrtBackend()\n"
        "OrtBackend(threads=1)\n"
    )
    assert "threads | is 1, but this process shares a pool of 2" in output


def test_a_session_opens_on_a_pool_that_another_thread_made_since_it_had_options(
    exported: Callable[..., Path],
) -> None:
    output = run_python(
        "import sys, skipdec\n"
        "from skipdec.engines.backends import ort\n"
        "from skipdec.engines.bundle import EngineBundle\n"
        "skipdec.use_shared_thread_pool(1)\n"
        "bundle = EngineBundle.open(sys.argv[1])\n"
        "options = ort.session_options(1)\n"
        "ort.session_options(1, needs_pool=True)\n"
        "ort.session_options(1, needs_pool=True)\n"
        "spec = bundle.manifest.embed\n"
        "ort.open_session(bundle, spec, options, ['CPUExecutionProvider'])\n"
        "print(options.use_per_session_threads)\n",
        str(exported("pre_norm", kernels="onnxruntime")),
    )
    assert output.split() == ["False"]


@pytest.mark.skipif(find_library() is None, reason="the kernels were not compiled")
def test_a_session_is_refused_where_the_system_has_no_memory_for_its_threads() -> None:
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
