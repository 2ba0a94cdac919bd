"""The compiled library is found or refused with a reason, and has an instruction set."""

from __future__ import annotations

from pathlib import Path

import pytest

from skipdec.engines.errors import EnvironmentMismatchError
from skipdec.engines.kernels import library
from skipdec.engines.kernels.library import INSTRUCTION_SET_VARIABLE, KernelLibrary, find_library


@pytest.fixture
def compiled() -> KernelLibrary:
    found = find_library()
    return found or pytest.skip("the kernels are not compiled here")


def test_a_missing_library_is_refused_with_advice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library, "__file__", str(tmp_path / "library.py"))
    assert find_library() is None
    with pytest.raises(EnvironmentMismatchError, match=r"bundle \| .*--kernels onnxruntime"):
        library.require_library("bundle")


@pytest.mark.parametrize("content", [b"", b"of another processor", b"\x7fELF" + bytes(60)])
def test_a_library_of_another_machine_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    monkeypatch.setattr(library, "__file__", str(tmp_path / "library.py"))
    file = tmp_path / "_native.abi3.so"
    file.write_bytes(content)
    with pytest.raises(EnvironmentMismatchError, match=r"can't be loaded .*install skipdec again"):
        find_library()


def test_the_best_instruction_set_is_chosen_unless_another_is_forced(
    compiled: KernelLibrary, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(INSTRUCTION_SET_VARIABLE, raising=False)
    assert compiled.instruction_sets[-1] == "portable"
    assert compiled.instruction_set == compiled.instruction_sets[0]
    for each in compiled.instruction_sets:
        monkeypatch.setenv(INSTRUCTION_SET_VARIABLE, each)
        assert compiled.instruction_set == each


def test_an_unknown_instruction_set_is_refused_with_the_available_ones(
    compiled: KernelLibrary, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(INSTRUCTION_SET_VARIABLE, "portabel")
    with pytest.raises(EnvironmentMismatchError, match=r"'portabel'; did you mean 'portable'\? .*"):
        _ = compiled.instruction_set
