"""A bundle given instead of a checkpoint, or vice versa, gets one error that says so."""

from __future__ import annotations

from pathlib import Path

import command_line
import pytest

SAMPLE = ("--examples", "1", "--held-out", "1")


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("export", ()),
        ("tune", ("--schedule", "2x", "--data")),
        ("round", (*SAMPLE, "--data")),
        ("calibrate", (*SAMPLE, "--data")),
    ],
)
def test_a_bundle_instead_of_a_checkpoint_is_refused(
    command: str, options: tuple[str, ...], bundle: Path, data: Path, tmp_path: Path
) -> None:
    rows = (str(data),) if options else ()
    arguments = [command, str(bundle), "-o", str(tmp_path / "out"), *options, *rows]
    result = command_line.run(*arguments)
    assert result.exit_code == 1
    assert result.stderr.count("is a bundle, not a checkpoint; pass the directory") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["evaluate", "inspect", "bench"])
def test_a_checkpoint_instead_of_a_bundle_is_refused(
    command: str, bundle: Path, data: Path
) -> None:
    checkpoint = str(bundle.parent / "checkpoint")
    options = ["--data", str(data)] if command == "evaluate" else []
    result = command_line.run(command, checkpoint, *options)
    assert result.exit_code != 0
    assert (
        result.stderr.count(f"is a checkpoint, not a bundle; run: skipdec export {checkpoint}") == 1
    )
