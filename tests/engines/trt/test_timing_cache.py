"""Concurrent builds share a file of kernel timings; stand-ins replace TensorRT's caches."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from skipdec.engines.errors import EnvironmentMismatchError
from skipdec.engines.trt.builder import attach_timing_cache, merge_timing_cache


class Cache:
    """Entries of one TensorRT version, like ``trt.ITimingCache``."""

    def __init__(self, version: int, content: bytes) -> None:
        document = json.loads(content) if content else {"version": version, "entries": []}
        self.version, self.entries = document["version"], set(document["entries"])

    def combine(self, other: Cache, *, ignore_mismatch: bool) -> bool:
        assert not ignore_mismatch
        self.entries |= other.entries
        return self.version == other.version

    def serialize(self) -> bytes:
        return json.dumps({"version": self.version, "entries": sorted(self.entries)}).encode()


class Config:
    """Stand-in for ``trt.IBuilderConfig`` of one TensorRT version."""

    def __init__(self, version: int = 11) -> None:
        self.version = version

    def create_timing_cache(self, content: bytes) -> Cache:
        return Cache(self.version, content)

    def set_timing_cache(self, cache: Cache, *, ignore_mismatch: bool) -> bool:
        assert not ignore_mismatch
        return cache.version == self.version


def test_overlapping_builds_keep_each_others_measurements(tmp_path: Path) -> None:
    path, config = tmp_path / "cache", Config()
    first, second = (attach_timing_cache(path, config) for _ in range(2))
    first.entries.add("gemm")
    second.entries.add("norm")
    for cache in (first, second):
        merge_timing_cache(path, config, cache)
    assert attach_timing_cache(path, config).entries == {"gemm", "norm"}
    assert {entry.name for entry in tmp_path.iterdir()} == {"cache", ".cache.lock"}


def test_a_file_of_another_version_is_refused_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "cache"
    merge_timing_cache(path, Config(10), Cache(10, b""))
    before = path.read_bytes()
    with pytest.raises(EnvironmentMismatchError, match="another version of TensorRT"):
        attach_timing_cache(path, Config(11))
    assert path.read_bytes() == before


def test_a_failed_merge_leaves_the_file_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "cache"
    merge_timing_cache(path, Config(), Cache(11, b""))
    before = path.read_bytes()
    with pytest.raises(EnvironmentMismatchError):
        merge_timing_cache(path, Config(), Cache(10, b""))
    assert path.read_bytes() == before
    assert {entry.name for entry in tmp_path.iterdir()} == {"cache", ".cache.lock"}
