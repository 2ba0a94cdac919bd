"""Options of exports whose heads skipdec's kernels read, or don't."""

from __future__ import annotations

from typing import Any

PACKED: tuple[dict[str, Any], ...] = (
    {"quantize": "int8"},
    {"quantize": "int4", "block_size": 32},
    {"quantize": "int8-block"},
    {"dtype": "float16", "kv_dtype": "int8"},
    {},
    {"quantize": "int8", "head_quantize": "none"},
)
FOREIGN: dict[str, Any] = {"quantize": "int4", "block_size": 16}


def named(options: dict[str, Any]) -> str:
    """Return a name for tests with these options."""
    return "-".join(map(str, options.values())) or "float32"
