"""The bandwidth probe reads all of its memory, keeps the maximum and cleans up."""

from __future__ import annotations

import pytest

from skipdec.engines.errors import UsageError
from skipdec.runtime.measuring.bandwidth import BandwidthProbe

SIZE = 2**24


def test_best_is_the_fastest_pass() -> None:
    with BandwidthProbe(2, SIZE) as probe:
        passes = [probe.measure() for _ in range(3)]
        assert probe.samples == passes
        assert probe.best == max(passes) > 0


def test_memcmp_reads_to_the_end() -> None:
    with BandwidthProbe(1, SIZE) as probe:
        probe.memory[-1] = 2
        with pytest.raises(AssertionError, match="written to"):
            probe.measure()


@pytest.mark.parametrize(("threads", "nbytes"), [(0, SIZE), (4, 2**17)])
def test_bad_sizes_are_refused(threads: int, nbytes: int) -> None:
    with pytest.raises(UsageError, match="allowed"):
        BandwidthProbe(threads, nbytes)
