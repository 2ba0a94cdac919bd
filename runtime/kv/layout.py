"""KVLayout: the shape and type of one position of a cache."""

from __future__ import annotations

from dataclasses import dataclass

from ...engines.errors import BundleError
from ...engines.manifest import DType, TensorSpec
from ...engines.memory import ITEM_BYTES


@dataclass(frozen=True)
class KVLayout:
    """Shape of one position of one layer's key (or value) cache, from its engine's spec."""

    num_heads: int
    width: int  # W, elements of a head: D, and its scale's four bytes beside int8 codes
    dtype: DType

    @classmethod
    def of(cls, past_key: TensorSpec) -> KVLayout:
        """Read ``[B, num_heads, T, width]`` from a past_key; BundleError for another shape."""
        match past_key.shape:
            case (_, int(num_heads), _, int(width)):
                return cls(num_heads, width, past_key.dtype)
        raise BundleError(
            f"tensor {past_key.name}", f"is {past_key.shape}; expected (B, num_heads, T, width)"
        )

    def nbytes(self, rows: int, capacity: int) -> int:
        """Return the bytes of one key or value buffer [rows, num_heads, capacity, width].

        32 heads of 64 at 1,024 positions: 8 MiB in float32, 4 in float16, 2.125 in int8.
        """
        return rows * self.num_heads * capacity * self.width * ITEM_BYTES[self.dtype]
