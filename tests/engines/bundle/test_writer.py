"""A bundle is published atomically, even if its writer is killed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from skipdec.engines.bundle import EngineBundle
from skipdec.engines.bundle import place as bundle_swap
from skipdec.engines.bundle.place import bundle_place
from skipdec.engines.bundle.writer import BundleWriter
from skipdec.engines.errors import BundleError, UsageError

MakeBundle = Callable[..., EngineBundle]
EMPTY: dict[str, Any] = {}


def contents(directory: Path) -> dict[str, bytes]:
    files = [path for path in directory.rglob("*") if path.is_file()]
    return {path.relative_to(directory).as_posix(): path.read_bytes() for path in files}


def hidden_names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir() if path.name.startswith("."))


def test_equal_input_gives_equal_bytes(tmp_path: Path, make_bundle: MakeBundle) -> None:
    first, second = (make_bundle(tmp_path / place / "name") for place in ("here", "there"))
    assert contents(first.path) == contents(second.path)
    assert contents(make_bundle(tmp_path / "other", seed=1).path) != contents(first.path)


def test_publishing_deletes_stray_and_sibling_files(
    tmp_path: Path, make_engine_files: Callable[..., Any]
) -> None:
    with BundleWriter(tmp_path / "bundle") as writer:
        manifest = make_engine_files(writer.directory, 0)
        (writer.directory / "journal.json").touch()
        (writer.directory / "engines/work/deep").mkdir(parents=True)
        (writer.directory / "engines/work/deep/half.weights").touch()
        writer.publish(manifest, EMPTY, {"tokenizer.json": b'{"version": "1.0"}'})
    assert len(contents(tmp_path / "bundle")) == len(manifest.files) + 2
    assert not (tmp_path / "bundle/engines/work").exists()
    assert hidden_names(tmp_path) == []


def test_nothing_is_published_if_a_file_differs_from_the_manifest(
    tmp_path: Path, make_engine_files: Callable[..., Any]
) -> None:
    with BundleWriter(tmp_path / "bundle") as writer:
        manifest = make_engine_files(writer.directory, 0)
        (writer.directory / "engines/onnxruntime/head.onnx").write_bytes(b"another graph")
        with pytest.raises(BundleError, match=r"head\.onnx"):
            writer.publish(manifest, EMPTY, {"tokenizer.json": b'{"version": "1.0"}'})
    assert not (tmp_path / "bundle").exists()


def test_resume_keeps_the_files_of_an_interrupted_run_but_not_its_manifest(tmp_path: Path) -> None:
    with BundleWriter(tmp_path / "bundle") as writer:
        (writer.directory / "done").touch()
        (writer.directory / "manifest.json").touch()
    with BundleWriter(tmp_path / "bundle", resume=True) as writer:
        assert [path.name for path in writer.directory.iterdir()] == ["done"]
    with BundleWriter(tmp_path / "bundle", resume=False) as writer:
        assert list(writer.directory.iterdir()) == []


def test_a_second_writer_is_refused_until_the_first_ends_even_if_killed(tmp_path: Path) -> None:
    script = (
        "import sys, time; from pathlib import Path;"
        "from skipdec.engines.bundle.writer import BundleWriter;"
        "writer = BundleWriter(Path(sys.argv[1])).__enter__(); print('locked', flush=True);"
        "time.sleep(60)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path / "bundle")], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"locked\n"
        with (
            pytest.raises(BundleError, match=f"process {process.pid}"),
            BundleWriter(tmp_path / "bundle"),
        ):
            pass
        process.send_signal(signal.SIGKILL)
    with BundleWriter(tmp_path / "bundle"):
        pass


def test_leftovers_of_a_killed_writer_are_deleted(tmp_path: Path, make_bundle: MakeBundle) -> None:
    make_bundle(tmp_path / "bundle")
    (tmp_path / ".bundle.lock").touch()
    (tmp_path / ".bundle.old").mkdir()
    with pytest.raises(UsageError, match="--force"):
        bundle_place(tmp_path / "bundle").check(force=False)
    assert hidden_names(tmp_path) == []
    with BundleWriter(tmp_path / "bundle", force=True), pytest.raises(UsageError):
        bundle_place(tmp_path / "bundle").check(force=False)
    (tmp_path / ".bundle.partial").rmdir()


@pytest.mark.parametrize("force", [False, True])
def test_a_directory_that_is_not_a_bundle_is_never_replaced(tmp_path: Path, force: bool) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(UsageError, match="is not a bundle"):
        bundle_place(tmp_path).check(force=force)
    with pytest.raises(UsageError, match="is not a bundle"):
        bundle_place(tmp_path / "thesis.tex").check(force=force)
    with pytest.raises(UsageError, match="not a directory"):
        bundle_place(tmp_path / "thesis.tex" / "bundle").check(force=force)


def test_a_bundle_is_replaced_only_with_force(tmp_path: Path, make_bundle: MakeBundle) -> None:
    make_bundle(tmp_path / "bundle")
    with pytest.raises(UsageError, match="--force"):
        make_bundle(tmp_path / "bundle", seed=1)
    replaced = make_bundle(tmp_path / "bundle", seed=1, force=True)
    assert contents(replaced.path) == contents(make_bundle(tmp_path / "fresh", seed=1).path)
    assert hidden_names(tmp_path) == []


def test_an_empty_directory_is_replaced_without_force(
    tmp_path: Path, make_bundle: MakeBundle
) -> None:
    (tmp_path / "bundle").mkdir()
    assert make_bundle(tmp_path / "bundle").path == tmp_path / "bundle"


def test_an_open_file_of_the_replaced_bundle_stays_readable(
    tmp_path: Path, make_bundle: MakeBundle
) -> None:
    weights = make_bundle(tmp_path / "bundle").file("engines/onnxruntime/head.weights")
    before = weights.read_bytes()
    with weights.open("rb") as file:
        make_bundle(tmp_path / "bundle", seed=1, force=True)
        assert file.read() == before != weights.read_bytes()


def run_and_die_before_step(number: int, action: Callable[[], object]) -> bool:
    """Run ``action`` in a forked child killed before its n-th change of a directory.

    Returns True if it died, False if ``action`` has fewer steps.
    """
    child = os.fork()
    if child == 0:
        steps = 0

        def counted(change: Callable[..., Any]) -> Callable[..., Any]:
            def step(*args: object, **kwargs: object) -> Any:  # noqa: ANN401
                nonlocal steps
                if steps == number:
                    os.kill(os.getpid(), signal.SIGKILL)
                steps += 1
                return change(*args, **kwargs)

            return step

        for name in ("rename", "replace", "unlink", "rmdir", "mkdir"):
            setattr(os, name, counted(getattr(os, name)))
        bundle_swap.exchange = counted(bundle_swap.exchange)
        action()
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.waitstatus_to_exitcode(status) == 0
    return os.WIFSIGNALED(status)


@pytest.mark.parametrize("kernel_exchanges", [True, False])
def test_a_bundle_opens_whole_after_a_kill_at_any_step_of_a_replacement(
    tmp_path: Path, make_bundle: MakeBundle, monkeypatch: pytest.MonkeyPatch, kernel_exchanges: bool
) -> None:
    if not kernel_exchanges:
        monkeypatch.setattr(bundle_swap, "exchange", lambda first, second: False)
    made = make_bundle(tmp_path / "old").path
    old = contents(made)
    new = contents(make_bundle(tmp_path / "new", seed=1).path)
    number, died = 0, True
    seen = set()
    while died:
        target = tmp_path / f"killed_{number}" / "bundle"
        shutil.copytree(made, target)
        died = run_and_die_before_step(number, lambda t=target: make_bundle(t, seed=1, force=True))
        bundle = EngineBundle.open(target, verify="full")
        assert contents(bundle.path) in (old, new)
        seen.add(contents(bundle.path) == new)
        make_bundle(target, seed=1, force=True)
        assert contents(target) == new
        assert hidden_names(target.parent) == []
        number += 1
    assert number > 20
    assert seen == {False, True}


def test_no_partial_bundle_opens_after_a_kill_at_any_step(
    tmp_path: Path, make_bundle: MakeBundle
) -> None:
    whole = contents(make_bundle(tmp_path / "whole").path)
    number, died = 0, True
    while died:
        target = tmp_path / f"killed_{number}" / "bundle"
        died = run_and_die_before_step(number, lambda t=target: make_bundle(t))
        if target.exists():
            assert contents(EngineBundle.open(target).path) == whole
        else:
            with pytest.raises(BundleError, match=r"unfinished export|does not exist"):
                EngineBundle.open(target)
            make_bundle(target)
            assert contents(target) == whole
        number += 1
    assert number > 10
