"""The bandwidth probe reads all of its memory, keeps the maximum and cleans up."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from skipdec.engines.errors import UsageError
from skipdec.runtime.measuring import bandwidth
from skipdec.runtime.measuring.bandwidth import BandwidthProbe

SIZE = 2**24


@pytest.mark.parametrize("threads", [1, 3])
def test_every_reader_reads_every_threads_slice(threads: int) -> None:
    slices = bandwidth._thread_slices(SIZE, threads)
    assert sum(size for _, size in slices) > 0.999 * SIZE
    assert all(offset + size == following for (offset, size), (following, _) in pairwise(slices))


def test_best_is_the_strongest_pass() -> None:
    with BandwidthProbe(2, SIZE) as probe:
        passes = [probe.measure() for _ in range(3)]
        assert probe.samples == passes
        assert probe.best == max(passes) > 0


def test_memcmp_reads_to_the_end() -> None:
    with BandwidthProbe(1, SIZE) as probe:
        assert len(probe._readers) == 2
        probe._memory[-1] = 2
        with pytest.raises(AssertionError, match="written to"):
            probe.measure()


def test_a_pass_takes_longer_over_more_memory() -> None:
    with BandwidthProbe(1, SIZE) as small, BandwidthProbe(1, 16 * SIZE) as large:
        maximum = small._readers[0], large._readers[0]
        seconds = [
            min(probe._pass_seconds(reader) for _ in range(5))
            for probe, reader in zip((small, large), maximum, strict=True)
        ]
    assert seconds[1] > 2 * seconds[0]


def test_memory_is_resident_and_equal() -> None:
    memory = bandwidth._resident_memory(2**21 + 4096)
    assert memory.shape == (2**21 + 4096,)
    assert np.all(memory == 1)


@pytest.mark.parametrize(("threads", "nbytes"), [(0, SIZE), (4, 2**17)])
def test_bad_sizes_are_refused(threads: int, nbytes: int) -> None:
    with pytest.raises(UsageError, match="allowed"):
        BandwidthProbe(threads, nbytes)
