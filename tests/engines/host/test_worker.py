"""A worker process: started early, asked once, gone with whoever started it."""

from __future__ import annotations

import signal

import pytest

from skipdec.engines.host.worker import Worker, WorkerCrashError

READER = "ast"  # a module of Python's own that reads its stdin to the end


def test_a_worker_that_nobody_asked_is_ended() -> None:
    with Worker(READER, []) as worker:
        assert worker._process.poll() is None
    assert worker._process.returncode == -signal.SIGKILL


def test_a_worker_that_ends_without_a_report_has_crashed_with_its_last_words() -> None:
    with Worker(READER, []) as worker, pytest.raises(WorkerCrashError) as caught:
        worker.run("no source (", lambda _: None)
    assert caught.value.code == 1
    assert "SyntaxError" in caught.value.output


def test_the_environment_is_added_to_this_process() -> None:
    added = {"PYTHONVERBOSE": "1"}
    with Worker(READER, [], added) as worker, pytest.raises(WorkerCrashError) as caught:
        worker.run("no source (", lambda _: None)
    assert "cleanup" in caught.value.output  # what a verbose interpreter says at its end
