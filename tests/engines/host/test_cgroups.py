"""Control groups limit this process to the minimum on its path, in both versions."""

from __future__ import annotations

from pathlib import Path

import pytest

from skipdec.engines import memory
from skipdec.engines.errors import CapacityError
from skipdec.engines.host.processor import memory_limit, processor_quota
from skipdec.engines.memory import HostMemory

NO_LIMIT = 9223372036854771712  # of version 1


def process(directory: Path, groups: str, root: str = "/", **files: str) -> Path:
    """Write a /proc/self with hierarchies below ``directory``; files by path, __ for /."""
    own = directory / "proc"
    own.mkdir()
    (own / "cgroup").write_text(groups)
    (own / "mountinfo").write_text(
        f"24 1 0:3 / {directory} rw - ext4 /dev/sda rw\n"
        f"30 24 0:28 {root} {directory}/unified rw,relatime - cgroup2 cgroup2 rw\n"
        f"31 24 0:29 {root} {directory}/memory rw,relatime shared:9 - cgroup cgroup rw,memory\n"
        f"32 24 0:30 {root} {directory}/cpu rw,relatime - cgroup cgroup rw,cpu,cpuacct\n"
    )
    for name, text in files.items():
        path = directory.joinpath(*name.split("__"))
        path = path.with_name(path.name.replace("_DOT_", "."))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return own


@pytest.mark.parametrize(
    ("groups", "root", "files", "expected"),
    [
        ("0::/a/b\n", "/", {"unified__a__b__memory_DOT_max": "350"}, 350),
        ("0::/a/b\n", "/", {"unified__a__memory_DOT_max": "9",
            "unified__a__b__memory_DOT_max": "max"}, 9),
        ("0::/\n", "/", {"unified__memory_DOT_max": "7"}, 7),
        ("0::/docker/x\n", "/docker/x", {"unified__memory_DOT_max": "7"}, 7),
        ("4:memory:/docker/x\n", "/other", {"memory__memory_DOT_limit_in_bytes": "7"}, 7),
        ("4:memory:/a\n0::/\n", "/", {"memory__a__memory_DOT_limit_in_bytes": "8",
            "memory__memory_DOT_limit_in_bytes": str(NO_LIMIT)}, 8),
        ("4:memory:/a\n", "/", {"memory__a__memory_DOT_limit_in_bytes": str(NO_LIMIT)}, NO_LIMIT),
        ("0::/a\n", "/", {}, None),
        ("", "/", {}, None),
    ],
)  # fmt: skip
def test_memory_limit_is_the_minimum_on_the_path(
    tmp_path: Path, groups: str, root: str, files: dict[str, str], expected: int | None
) -> None:
    assert memory_limit(process(tmp_path, groups, root, **files)) == expected


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"unified__a__cpu_DOT_max": "150000 100000"}, 1.5),
        ({"unified__a__cpu_DOT_max": "max 100000", "unified__cpu_DOT_max": "400000 100000"}, 4),
        ({"cpu__a__cpu_DOT_cfs_quota_us": "50000", "cpu__a__cpu_DOT_cfs_period_us": "100000"}, 0.5),
        ({"cpu__a__cpu_DOT_cfs_quota_us": "-1", "cpu__a__cpu_DOT_cfs_period_us": "100000"}, None),
        ({}, None),
    ],
)
def test_processor_quota_is_the_minimum_on_the_path(
    tmp_path: Path, files: dict[str, str], expected: float | None
) -> None:
    assert processor_quota(process(tmp_path, "2:cpu,cpuacct:/a\n0::/a\n", **files)) == expected


def test_a_system_without_proc_has_no_limits(tmp_path: Path) -> None:
    assert memory_limit(tmp_path) is processor_quota(tmp_path) is None


def test_caches_may_take_half_of_what_is_left_of_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "memory_limit", lambda: 350_000_000)
    monkeypatch.setattr(memory, "anonymous_bytes", lambda: 150_000_000)
    assert HostMemory().available_bytes() == 100_000_000
    monkeypatch.setattr(memory, "memory_limit", lambda: 100_000_000)
    assert HostMemory().available_bytes() == 0
    monkeypatch.setattr(memory, "memory_limit", lambda: NO_LIMIT)
    assert 0 < HostMemory().available_bytes() < NO_LIMIT // 4


def test_memory_that_cannot_be_had_is_a_capacity_error() -> None:
    with pytest.raises(CapacityError, match=f"{1 << 60:,} bytes could not be allocated"):
        HostMemory().allocate(1 << 60)
