"""libskipdec is found, or an error explains how to get it."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from skipdec.engines.errors import EnvironmentMismatchError, unloadable
from skipdec.runtime.libskipdec import config_program, run_program
from skipdec.runtime.libskipdec import paths as paths
from skipdec.runtime.libskipdec.paths import native_abi_version, native_paths, onnxruntime_library
from skipdec.runtime.measuring import doctor


@pytest.fixture
def installation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the empty folder in which libskipdec is looked for."""
    monkeypatch.setattr(paths, "_ROOT", tmp_path)
    return tmp_path


def test_a_missing_libskipdec_is_reported_with_the_install_command(
    installation: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(EnvironmentMismatchError, match=r"libskipdec \| .*g\+\+.*run: pip install"):
        native_paths()
    assert "run: pip install" in str(doctor.examine_machine(bandwidth=False)["libskipdec"])
    with pytest.raises(SystemExit) as end:
        config_program.main(["--libs"])
    assert end.value.code == 3
    assert "error: libskipdec | was not compiled" in capsys.readouterr().err


@pytest.mark.parametrize("named", [None, "/elsewhere/libonnxruntime.so"])
def test_skipdec_run_passes_an_onnx_runtime_to_the_program(
    installation: Path, monkeypatch: pytest.MonkeyPatch, named: str | None
) -> None:
    (installation / "lib").mkdir()
    (installation / "lib" / "libskipdec.so.1").touch()
    environment = {"SKIPDEC_ONNXRUNTIME": named} if named else {}
    monkeypatch.setattr(os, "environ", environment)
    monkeypatch.setattr(sys, "argv", ["skipdec-run", "bundle", "--n", "2"])
    started: list[object] = []
    monkeypatch.setattr(os, "execv", lambda *command: started.extend(command))
    run_program.main()
    program = installation.resolve() / "bin" / "skipdec-run"
    assert started == [program, [str(program), "bundle", "--n", "2"]]
    assert environment["SKIPDEC_ONNXRUNTIME"] == (named or str(onnxruntime_library()))


def test_skipdec_run_without_libskipdec_prints_the_install_command(
    installation: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        run_program.main()
    assert end.value.code == 3
    assert "unset SKIPDEC_LIBSKIPDEC, then run: pip install" in capsys.readouterr().err


@pytest.mark.parametrize("content", [b"", b"of another processor"])
def test_a_library_of_another_machine_is_refused(installation: Path, content: bytes) -> None:
    (installation / "lib").mkdir()
    (installation / "lib" / "libskipdec.so.1").write_bytes(content)
    with pytest.raises(EnvironmentMismatchError, match=r"can't be loaded .*install skipdec again"):
        native_abi_version()


@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        (os.strerror(errno.EMFILE), "raise the limit of open files (ulimit -n)"),
        ("failed to map segment from shared object", "raise the limit of memory (ulimit -v)"),
        ("invalid ELF header", "install skipdec again on this machine"),
    ],
)
def test_a_library_that_cannot_be_loaded_is_reported_with_its_remedy(
    words: str, remedy: str
) -> None:
    assert remedy in str(unloadable(Path("libskipdec.so.1"), OSError(f"libskipdec.so.1: {words}")))


@pytest.mark.parametrize(
    ("options", "printed"),
    [
        (["--cflags"], "-I{0}/include"),
        (["--libs"], "-L{0}/lib -Wl,-rpath,{0}/lib -l:libskipdec.so.1"),
        (["--cmakedir", "--includedir"], "{0}/lib/cmake/skipdec {0}/include"),
        (["--libdir", "--pkgconfigdir"], "{0}/lib {0}/lib/pkgconfig"),
    ],
)
def test_skipdec_config_prints_flags_and_folders_in_the_given_order(
    installation: Path, capsys: pytest.CaptureFixture[str], options: list[str], printed: str
) -> None:
    (installation / "lib").mkdir()
    (installation / "lib" / "libskipdec.so.1").touch()
    config_program.main(options)
    assert capsys.readouterr().out == printed.format(installation.resolve()) + "\n"


@pytest.mark.parametrize("options", [[], ["--lib"], ["--cflags", "opt"]])
def test_skipdec_config_refuses_missing_and_unknown_options(options: list[str]) -> None:
    with pytest.raises(SystemExit) as end:
        config_program.main(options)
    assert end.value.code == 2


def test_skipdec_config_imports_neither_numpy_nor_typer() -> None:
    code = (
        "import sys; from skipdec.runtime.libskipdec import config_program\n"
        "assert not {'numpy', 'typer', 'pydantic', 'rich'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
