"""Starts a verification in a process of its own and hands back what it found."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from ..engines import errors
from ..engines.errors import SkipDecError, VerificationError
from ..engines.extras import require_extra
from ..engines.manifest import PrecisionSpec
from .config import ExportConfig
from .verify_report import Progress, VerificationReport, VerificationRequest

_WORKER = f"{__package__}.verify_worker"
_STDERR_SHOWN = 2000  # characters at the end


def _ignore(progress: Progress) -> None:
    pass


def run_verification(
    directory: Path,
    config: ExportConfig,
    precision: PrecisionSpec | None = None,
    on_progress: Callable[[Progress], None] = _ignore,
) -> VerificationReport:
    """Verify the bundle in ``directory``, published or staged, against ``config``'s checkpoint.

    ``precision`` is what was asked for, ``config.precision()`` by default. ``on_progress`` is
    called before each engine and stage. Returns the report of a bundle that passed; raises
    VerificationError naming the worst tensor and engine of one that did not, and whatever error
    the checkpoint or bundle gave. This process stays small: torch is loaded in the other one only.
    """
    require_extra("export", "verification")
    request = VerificationRequest(
        directory=directory.resolve(), config=config, precision=precision or config.precision()
    )
    command = [sys.executable, "-P", "-m", _WORKER]
    with (
        tempfile.TemporaryFile("w+") as stderr,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, text=True
        ) as process,
    ):
        try:
            report = _follow(process, request, on_progress)
        except BaseException:
            process.kill()
            raise
        if report is None:
            raise _crashed(directory, process.wait(), stderr)
    report.raise_if_failed(str(directory))
    return report


def _follow(
    process: subprocess.Popen[str],
    request: VerificationRequest,
    on_progress: Callable[[Progress], None],
) -> VerificationReport | None:
    """Hand over the request, pass progress on, return the report; None if there was none."""
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        with process.stdin as stdin:
            stdin.write(request.model_dump_json())
    except BrokenPipeError:
        return None
    for line in process.stdout:
        ((kind, content),) = json.loads(line).items()
        if kind == "progress":
            on_progress(Progress.model_validate(content))
        elif kind == "error":
            raise _error(content)
        else:
            return VerificationReport.model_validate(content)
    return None


def _error(content: dict[str, Any]) -> SkipDecError:
    error_type: type[SkipDecError] = getattr(errors, content["kind"], SkipDecError)
    return error_type(content["subject"], *content["problems"])


def _crashed(directory: Path, code: int, stderr: IO[str]) -> VerificationError:
    stderr.seek(0)
    output = stderr.read()[-_STDERR_SHOWN:].strip()
    if code < 0:
        problem = (
            f"the verifying process was killed by signal {-code}, as happens when memory runs "
            "out; lower --verify-memory, or skip verification with --no-verify"
        )
    else:
        problem = f"the verifying process ended with code {code}"
    return VerificationError(str(directory), f"{problem}\n{output}" if output else problem)
