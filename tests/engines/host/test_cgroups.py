"""Control groups of both versions limit this process to the minimum on its path."""

from __future__ import annotations

from pathlib import Path

import pytest

from skipdec.engines import memory
from skipdec.engines.errors import CapacityError
from skipdec.engines.host.processor import available_memory, processor_quota
from skipdec.engines.memory import HostMemory

NO_LIMIT = 9223372036854771712  # version 1


def process(directory: Path, groups: str, root: str = "/", **files: str) -> Path:
    """Write a /proc/self and hierarchies below ``directory``; file names have ``__`` for ``/``."""
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
        ("0::/\n", "/", {"unified__memory_DOT_max": "7000"}, 4096),
        ("0::/a\n", "/", {"unified__a__memory_DOT_max": "350",
            "unified__a__memory_DOT_stat": "anon 150\nfile 9000\nanon_thp 0"}, 200),
        ("0::/a\n", "/", {"unified__a__memory_DOT_max": "350",
            "unified__a__memory_DOT_stat": "anon 351"}, 0),
        ("0::/docker/x\n", "/docker/x", {"unified__memory_DOT_max": "7"}, 7),
        ("4:memory:/docker/x\n", "/other", {"memory__memory_DOT_limit_in_bytes": "7"}, 7),
        ("4:memory:/a\n0::/\n", "/", {"memory__a__memory_DOT_limit_in_bytes": "8",
            "memory__memory_DOT_limit_in_bytes": str(NO_LIMIT)}, 8),
        ("4:memory:/a\n", "/", {"memory__a__memory_DOT_limit_in_bytes": "8",
            "memory__a__memory_DOT_stat": "rss 2\ntotal_rss 3"}, 5),
        ("4:memory:/a\n", "/", {"memory__a__memory_DOT_limit_in_bytes": str(NO_LIMIT)}, 4096),
        ("0::/a\n", "/", {}, 4096),
        ("", "/", {}, 4096),
    ],
)  # fmt: skip
def test_available_memory_is_the_minimum_over_machine_and_groups(
    tmp_path: Path, groups: str, root: str, files: dict[str, str], expected: int
) -> None:
    machine = {"meminfo": "MemTotal: 9 kB\nMemAvailable: 4 kB"}
    own = process(tmp_path, groups, root, **files, **machine)
    assert available_memory(own, tmp_path / "meminfo") == expected


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
    assert processor_quota(tmp_path) is None
    assert 1 << 28 < available_memory(tmp_path, tmp_path / "meminfo") < NO_LIMIT // 4


def test_caches_may_take_half_of_the_available_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "available_memory", lambda: 200_000_000)
    assert HostMemory().available_bytes() == 100_000_000


def test_memory_that_cannot_be_allocated_is_a_capacity_error() -> None:
    with pytest.raises(CapacityError, match=f"{1 << 60:,} bytes could not be allocated"):
        HostMemory().allocate(1 << 60)
