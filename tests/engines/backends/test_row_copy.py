"""Interpret the CUDA kernel that gathers rows, and assemble it if there is an assembler."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from skipdec.engines.errors import DeviceError

pytest.importorskip("cuda.bindings.driver", reason="cuda-bindings is not installed")

from cuda.bindings import driver

from skipdec.engines.backends import cuda

_SIZES = {"u8": 1, "u32": 4, "u64": 8}
_OPERATIONS = {
    "add.s64": lambda a, b: a + b,
    "mul.lo.s64": lambda a, b: a * b,
    "mul.wide.u32": lambda a, b: a * b,
    "and.b64": lambda a, b: a & b,
    "shl.b32": lambda a, b: a << b,
    "setp.eq.s64": lambda a, b: a == b,
    "setp.ge.s64": lambda a, b: a >= b,
    "setp.lt.s64": lambda a, b: a < b,
}


class Thread:
    """One thread of the kernel, in this process's memory."""

    def __init__(self, arguments: list[int], block: int, number: int, threads: int) -> None:
        self.values: dict[str, Any] = {
            f"[copy_rows_param_{index}]": value for index, value in enumerate(arguments)
        }
        self.values |= {"%ctaid.x": block, "%tid.x": number, "%ntid.x": threads}

    def run(self) -> None:
        body = cuda.PTX.decode().split("\n{", 1)[1].rsplit("}", 1)[0]
        lines = [line.strip().rstrip(";") for line in body.splitlines()]
        lines = [line for line in lines if line and not line.startswith(".reg")]
        at = 0
        while lines[at] != "ret":
            target = self._execute(lines[at])
            at = at + 1 if target is None else lines.index(f"{target}:")

    def _execute(self, line: str) -> str | None:
        if line.endswith(":"):
            return None
        guarded = re.fullmatch(r"@(%p\d+) (.*)", line)
        if guarded:
            return self._execute(guarded[2]) if self.values[guarded[1]] else None
        name, _, rest = line.partition(" ")
        operands = re.findall(r"\{.*?\}|\[.*?\]|[^\s,]+", rest)
        if name in ("bra", "bra.uni"):
            return operands[0]
        if name in _OPERATIONS:
            self.values[operands[0]] = _OPERATIONS[name](*map(self._value, operands[1:]))
        elif name.startswith(("ld.param", "cvta", "mov", "cvt")):
            self.values[operands[0]] = self._value(operands[1])
        elif name.startswith("ld.global"):
            self._load(name, *operands)
        else:
            assert name.startswith("st.global"), name
            self._store(name, *operands)
        return None

    def _value(self, operand: str) -> int:
        return self.values[operand] if operand in self.values else int(operand)

    def _load(self, name: str, registers: str, place: str) -> None:
        size, address = _SIZES[name.rsplit(".", 1)[1]], self._value(place.strip("[]"))
        for index, register in enumerate(re.findall(r"%\w+", registers)):
            data = ctypes.string_at(address + index * size, size)
            self.values[register] = int.from_bytes(data, "little")

    def _store(self, name: str, place: str, registers: str) -> None:
        size, address = _SIZES[name.rsplit(".", 1)[1]], self._value(place.strip("[]"))
        for index, register in enumerate(re.findall(r"%\w+", registers)):
            data = self.values[register].to_bytes(size, "little")
            ctypes.memmove(address + index * size, data, size)


@pytest.mark.parametrize("row_bytes", [1, 13, 16, 48, 80])
def test_the_kernel_copies_the_indexed_rows(row_bytes: int) -> None:
    """Two threads per block copy rows that are longer or shorter than one copy of all threads."""
    source = np.random.default_rng(0).integers(0, 256, (5, row_bytes)).astype(np.uint8)
    target = np.full((5, row_bytes), 7, np.uint8)
    index = np.array([3, 3, 0, 4], np.int64)
    places = [array.ctypes.data for array in (target, source, index)]
    for block in range(len(index)):
        for number in range(2):
            Thread([*places, row_bytes], block, number, 2).run()
    np.testing.assert_array_equal(target[:4], source[index])
    assert (target[4] == 7).all()


def _assembler() -> str | None:
    spec = find_spec("nvidia")
    places = (
        [Path(place) / "cu13" / "bin" for place in spec.submodule_search_locations or ()]
        if (spec)
        else []
    )
    return next(
        (str(place / "ptxas") for place in places if (place / "ptxas").exists()),
        shutil.which("ptxas"),
    )


@pytest.mark.parametrize("architecture", ["sm_75", "sm_90", "sm_120"])
def test_the_kernel_is_assembled_for_old_and_new_gpus(architecture: str, tmp_path: Path) -> None:
    assembler = _assembler()
    if assembler is None:
        pytest.skip("there is no ptxas; it comes with nvidia-cuda-nvcc")
    source = tmp_path / "kernel.ptx"
    source.write_bytes(cuda.PTX)
    command = [assembler, "-arch", architecture, str(source), "-o", str(tmp_path / "kernel")]
    subprocess.run(command, check=True)


class FakeDriver(SimpleNamespace):
    """A CUDA driver that records calls; only those in ``failing`` fail."""

    def __init__(self, failing: str = "") -> None:
        super().__init__(calls={}, failing=failing)
        self.CUresult = driver.CUresult

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        assert hasattr(driver, name)

        def call(*arguments: Any) -> tuple[Any, ...]:  # noqa: ANN401
            self.calls[name] = arguments
            results = self.CUresult
            error = results.CUDA_ERROR_UNKNOWN if name == self.failing else results.CUDA_SUCCESS
            return error, {"cuGetErrorName": b"CUDA_ERROR_UNKNOWN"}.get(name, 1)

        call.__name__ = name
        return call


def test_a_launch_has_one_block_per_row_on_the_given_stream(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake = FakeDriver()
    monkeypatch.setattr(cuda, "driver", fake)
    cuda.RowCopy().launch(5, 256, 512, 768, rows=3, row_bytes=64)
    _, rows, _, _, threads, _, _, _, stream, (values, types), _ = fake.calls["cuLaunchKernel"]
    assert (rows, threads, stream, values) == (3, 256, 5, (256, 512, 768, 64))
    assert [ctypes.sizeof(one) for one in types] == [8, 8, 8, 8]


def test_driver_errors_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "driver", FakeDriver("cuModuleLoadData"))
    with pytest.raises(DeviceError, match=r"cuModuleLoadData \| failed with CUDA_ERROR_UNKNOWN"):
        cuda.RowCopy()
