"""Which weights the kernels read; in a bundle for them ONNX Runtime computes with the others."""

from __future__ import annotations

from ..manifest import Kernels, PrecisionSpec

INT4_BLOCK_SIZES = (32, 64, 128)  # supported by BlockLinear4

UNREAD_HEAD = "only the kernels skipdec read a part of the head's weights in place"


def fits_block_linear4(precision: PrecisionSpec) -> bool:
    """Return whether BlockLinear4 runs int4 weights of ``precision``; else ONNX Runtime does."""
    return precision.block_size in INT4_BLOCK_SIZES and precision.accuracy_level == 4


def foreign_products(precision: PrecisionSpec) -> tuple[str, ...]:
    """Return the kinds of weights, each once, whose products ONNX Runtime computes.

    Their bits may depend on how many tokens share a call: on AVX-512 VNNI those of int8-block do.

    >>> foreign_products(PrecisionSpec(quantize="int8-block", block_size=64, accuracy_level=4))
    ('int8-block', 'float32')
    """
    found = []
    for quantize in (precision.quantize, precision.head_quantize):
        if quantize == "none" and precision.dtype == "float32":
            found.append("float32")
        elif quantize == "int8-block" or (quantize == "int4" and not fits_block_linear4(precision)):
            found.append(quantize)
    return tuple(dict.fromkeys(found))


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
