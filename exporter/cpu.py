"""What this machine's processor does with 8-bit integer products."""

from __future__ import annotations

import platform
from typing import Literal

from ..engines.cpu import processor_flags

_EXACT_INTEGER_PRODUCTS = frozenset({"avx512_vnni", "avx_vnni"})


def int8_weight_bits() -> Literal[7, 8]:
    """Bits to which int8 weights are quantised here: 8, or 7 where products may saturate.

    x86 without VNNI adds pairs of u8 x s8 products in 16 bits (``vpmaddubsw``): 2 * 255 * 127
    = 64770 > 32767. With weights of 7 bits, 2 * 255 * 63 = 32130 fits. ARM adds in 32 bits.
    """
    if platform.machine() not in ("x86_64", "AMD64"):
        return 8
    return 8 if processor_flags() & _EXACT_INTEGER_PRODUCTS else 7
