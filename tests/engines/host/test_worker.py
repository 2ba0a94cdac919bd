"""A worker process starts early, answers once, and ends with its parent."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from skipdec.engines import errors
from skipdec.engines.host.worker import Limits, Worker, WorkerCrashError
from skipdec.exporter.config import CheckpointSource
from skipdec.exporter.verification.report import VerificationRequest

READER = "ast"  # a module of the standard library that reads stdin to EOF


def test_an_unused_worker_is_killed() -> None:
    with Worker(READER, []) as worker:
        assert worker.process.poll() is None
    assert worker.process.returncode == -signal.SIGKILL


def test_a_worker_without_a_report_has_crashed_with_its_last_output() -> None:
    with Worker(READER, []) as worker, pytest.raises(WorkerCrashError) as caught:
        worker.run("no source (", lambda _: None)
    assert caught.value.code == 1
    assert "SyntaxError" in caught.value.output


def test_a_worker_killed_within_a_line_has_crashed_with_its_output(tmp_path: Path) -> None:
    code = (
        "import os, sys\n"
        "sys.stdin.read()\n"
        "os.write(1, b'{\"report\": [1, ')\n"
        "os.write(2, b'caf\\xe9')\n"
        "os.kill(os.getpid(), 9)"
    )
    (tmp_path / "dying_worker.py").write_text(code)
    path = os.pathsep.join((str(tmp_path), os.environ.get("PYTHONPATH", "")))
    with (
        Worker("dying_worker", [], {"PYTHONPATH": path}) as worker,
        pytest.raises(WorkerCrashError) as caught,
    ):
        worker.run("", lambda _: None)
    assert (caught.value.code, caught.value.output) == (-signal.SIGKILL, "caf\ufffd")


def test_a_request_is_sent_as_utf_8_in_every_locale() -> None:
    code = (
        "from skipdec.engines.host.worker import Worker\n"
        f"with Worker({READER!r}, []) as worker: print(worker.process.stdin.encoding)"
    )
    environment = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    assert done.stdout == "utf-8\n"


def test_a_system_error_is_raised_with_its_file(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    request = VerificationRequest(
        directory=tmp_path, source=CheckpointSource(model="opt-125m"), ranges=report
    )
    code = (
        "from skipdec.exporter.verification import worker\n"
        f"worker.verify_bundle = lambda *_: open({str(report)!r})\n"
        "worker.main()"
    )
    (tmp_path / "failing_worker.py").write_text(code)
    path = os.pathsep.join((str(tmp_path), os.environ.get("PYTHONPATH", "")))
    with (
        Worker("failing_worker", [], {"PYTHONPATH": path}) as worker,
        pytest.raises(FileNotFoundError) as caught,
    ):
        worker.run(request.to_json(), lambda _: None)
    assert caught.value.filename == str(report)


def test_a_worker_ends_when_its_parent_is_killed() -> None:
    sleeps = ["-n1", "-r1", "import time; time.sleep(600)"]  # for timeit, which does not read stdin
    code = (
        "import sys; from skipdec.engines.host.worker import Worker\n"
        f"worker = Worker('timeit', {sleeps}); print(worker.process.pid, flush=True)\n"
        "sys.stdin.read()"
    )
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        worker = os.pidfd_open(int(parent.stdout.readline()))
        parent.kill()
    with os.fdopen(worker):
        ended, _, _ = select.select([worker], [], [], 30)
    assert ended == [worker]


def test_a_worker_gets_this_environment_and_the_given_variables() -> None:
    added = {"PYTHONVERBOSE": "1"}
    with Worker(READER, [], added) as worker, pytest.raises(WorkerCrashError) as caught:
        worker.run("no source (", lambda _: None)
    assert "cleanup" in caught.value.output  # printed by a verbose interpreter as it exits


@pytest.mark.parametrize(
    ("statement", "wall", "reason"),
    [
        ("while True: pass", 60, "took more than 1 s of processor time"),
        ("import time; time.sleep(60)", 0.5, "took more than 0.5 s"),
        ("bytes(1 << 40)", 60, "exited with code 1 (MemoryError)"),
        ("import os; os.abort()", 60, "was ended by SIGABRT"),
        ("import os; os.kill(os.getpid(), 40)", 60, "was ended by signal 40"),  # has no name
    ],
)
def test_a_worker_that_exceeds_a_limit_ends_with_the_reason(
    statement: str, wall: float, reason: str
) -> None:
    limits = Limits(seconds=1, memory=1 << 30, wall=wall)
    arguments = ["-n1", "-r1", statement]  # for timeit
    with (
        Worker("timeit", arguments, limits=limits) as worker,
        pytest.raises(WorkerCrashError) as caught,
    ):
        worker.run("", lambda _: None)
    assert caught.value.reason == reason


def test_every_device_or_bundle_error_can_be_sent_between_processes() -> None:
    import_module("skipdec.engines.backends.rehearsal")
    kinds = [errors.SkipDecError]
    for kind in kinds:
        kinds += kind.__subclasses__()
    names = {kind.__name__ for kind in kinds if kind.__module__.startswith("skipdec.")}
    assert names <= vars(errors).keys()
