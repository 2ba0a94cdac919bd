"""Makes the slot stitcher of loaded engines, on the host or on a device."""

from __future__ import annotations

from typing import cast

from ..kv.buffers import BufferPool, KVLayout
from ..kv.cache import SlotSizes
from ..kv.prefixes import PrefixCache
from ..kv.slot_cache import SlotCache
from .device.slot_stitcher import DeviceSlotStitcher, device_slot_cache
from .device.stitcher import DeviceStitcher
from .host.slot_stitcher import HostSlotStitcher
from .host.stitcher import HostStitcher
from .protocol import SlotLimits, SlotStitcher, Stitcher


def make_slots(
    stitcher: Stitcher,
    pool: BufferPool,
    layout: KVLayout,
    num_layers: int,
    limits: SlotLimits,
    *,
    exact: bool = False,
    keeps_prefixes: bool = False,
) -> SlotStitcher:
    """Make slots in memory of ``pool`` for rows that run on the engines of ``stitcher``.

    On the host, ``exact`` slots take no more memory than is reserved, and ``keeps_prefixes`` adds a
    `PrefixCache`.
    """
    if isinstance(stitcher, DeviceStitcher):
        cache = device_slot_cache(pool, layout, num_layers, limits)
        return DeviceSlotStitcher(stitcher, cache, pool, limits)
    sizes = SlotSizes(limits.max_rows, limits.max_positions, exact=exact)
    cache = SlotCache(pool, layout, num_layers=num_layers, limit=limits.kv_bytes, sizes=sizes)
    prefixes = PrefixCache(pool, layout, num_layers) if keeps_prefixes else None
    return HostSlotStitcher(cast(HostStitcher, stitcher), cache, pool, limits, prefixes)
