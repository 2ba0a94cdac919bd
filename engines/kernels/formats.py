"""Which weights the kernels read, and of which heads they read a part in place."""

from __future__ import annotations

from ..manifest import Kernels, PrecisionSpec

INT4_BLOCK_SIZES = (32, 64, 128)  # supported by BlockLinear4

UNREAD_HEAD = "only the kernels skipdec read a part of the head's weights in place"


def fits_block_linear4(precision: PrecisionSpec) -> bool:
    """Return whether BlockLinear4 runs int4 weights of ``precision``; else ONNX Runtime does."""
    return precision.block_size in INT4_BLOCK_SIZES and precision.accuracy_level == 4


def uncut_head(kernels: Kernels | None, precision: PrecisionSpec) -> str | None:
    """Return why a head can't be cut to the vocabulary's first tokens; None if it can be.

    >>> uncut_head("skipdec", PrecisionSpec(head_quantize="int8")) is None
    True
    """
    if kernels is None:
        return UNREAD_HEAD
    held = precision.head_quantize
    packed = {
        "none": precision.dtype != "float32",
        "int8": True,
        "int4": fits_block_linear4(precision),
    }
    if packed.get(held, False):
        return None
    form = precision.dtype if held == "none" else f"{held} of ONNX Runtime's operators"
    return (
        f"the head can't be cut: its weights are {form}, whose columns do not lie together; "
        "quantise it, or choose a 16-bit type"
    )
