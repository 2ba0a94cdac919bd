"""Count usable threads: the affinity, limited by the quota of control groups."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hollow_bundles import write_hollow_bundle

from skipdec.engines.backends.ort import (
    OrtBackend,
    cpu_session_options,
    session_options,
    use_shared_thread_pool,
)
from skipdec.engines.errors import UsageError
from skipdec.engines.host import processor
from skipdec.engines.kernels.library import find_library
from skipdec.engines.manifest import PrecisionSpec
from skipdec.runtime.opening import OpenOptions
from skipdec.runtime.schedule import ExitSchedule


@pytest.fixture
def four_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(4)))


@pytest.mark.parametrize(("quota", "cores"), [(None, 4), (0.2, 1), (1.5, 2), (3.0, 3), (64.0, 4)])
@pytest.mark.usefixtures("four_processors")
def test_a_quota_bounds_the_processors(
    monkeypatch: pytest.MonkeyPatch, quota: float | None, cores: int
) -> None:
    monkeypatch.setattr(processor, "processor_quota", lambda: quota)
    assert processor.available_cores() == cores


def test_onnxruntime_gets_its_threads_from_the_quota(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processor, "processor_quota", lambda: 1.5)
    assert session_options(None).intra_op_num_threads == 2


@pytest.mark.parametrize(("block_size", "of_kernels", "rest"), [(64, "3", 1), (16, "", 3)])
@pytest.mark.usefixtures("four_processors")
@pytest.mark.skipif(find_library() is None, reason="the kernels were not compiled")
def test_the_library_that_computes_products_gets_the_threads(
    tmp_path: Path, block_size: int, of_kernels: str, rest: int
) -> None:
    precision = PrecisionSpec(quantize="int4", block_size=block_size, accuracy_level=4)
    changes = {"kernels": "skipdec", "precision": precision}
    bundle = write_hollow_bundle(tmp_path / "bundle", ExitSchedule.full(2), **changes)
    options = cpu_session_options(3, bundle, bundle.manifest.engines[1])
    assert options.intra_op_num_threads == rest
    if of_kernels:
        assert options.get_session_config_entry("skipdec.threads") == of_kernels
    else:
        with pytest.raises(RuntimeError, match="does not have configuration"):
            options.get_session_config_entry("skipdec.threads")


@pytest.mark.parametrize(
    ("machine", "flags", "expected"),
    [
        ("x86_64", "avx2 avx512f", "1"),
        ("x86_64", "avx2 avx_vnni", None),
        ("x86_64", "avx512_vnni", None),
        ("aarch64", "asimd", None),
    ],
)
def test_onnxruntime_computes_int8_products_without_saturation(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, machine: str, flags: str, expected: str | None
) -> None:
    monkeypatch.setattr(processor.platform, "machine", lambda: machine)
    monkeypatch.setattr(processor, "processor_flags", lambda: frozenset(flags.split()))
    entry = "session.x64quantprecision"
    bundle = write_hollow_bundle(tmp_path / "bundle", ExitSchedule.full(2))
    options = cpu_session_options(1, bundle, bundle.manifest.engines[1])
    if expected is None:
        with pytest.raises(RuntimeError, match=entry):
            options.get_session_config_entry(entry)
    else:
        assert options.get_session_config_entry(entry) == expected


@pytest.mark.parametrize("threads", [0, -2, 5, 64, "2", 1.0, True])
@pytest.mark.usefixtures("four_processors")
def test_more_threads_than_processors_are_refused_everywhere(threads: Any) -> None:  # noqa: ANN401
    for use in (use_shared_thread_pool, OrtBackend):
        with pytest.raises(UsageError, match=f"is {threads!r}; allowed: 1 to 4, the processors"):
            use(threads)
    if type(threads) is int:  # an option's text becomes a number
        with pytest.raises(UsageError, match=f"threads is {threads}; allowed: 1"):
            OpenOptions(threads=threads)
