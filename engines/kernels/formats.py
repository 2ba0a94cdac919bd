"""Which weights the kernels can multiply; in their bundles ONNX Runtime multiplies the others."""

from __future__ import annotations

from ..manifest import KERNEL_BLOCK_SIZES, PrecisionSpec, Quantization

KERNEL_BLOCKS = "{}, {} or {}".format(*KERNEL_BLOCK_SIZES)


def fits_block_linear(precision: PrecisionSpec, quantize: Quantization) -> bool:
    """Return whether weights of ``quantize`` are blocks that the kernels can multiply.

    >>> fits_block_linear(PrecisionSpec(block_size=16, accuracy_level=4), "int4")
    False
    """
    has_products = precision.block_size in KERNEL_BLOCK_SIZES and precision.accuracy_level == 4
    return quantize in ("int4", "int8-block") and has_products


def foreign_products(precision: PrecisionSpec) -> tuple[str, ...]:
    """Return the kinds of weights, each once, whose products ONNX Runtime computes.

    Their bits may depend on how many tokens share a call: on AVX-512 VNNI those of int8-block do.

    >>> foreign_products(PrecisionSpec(quantize="int4", block_size=16, accuracy_level=4))
    ('int4',)
    """
    found = (
        quantize
        for quantize in (precision.quantize, precision.head_quantize)
        if quantize in ("int8-block", "int4") and not fits_block_linear(precision, quantize)
    )
    return tuple(dict.fromkeys(found))


def uncut_head(precision: PrecisionSpec) -> str | None:
    """Return why skipdec's head can't be cut to the vocabulary's first tokens; None if it can be.

    >>> uncut_head(PrecisionSpec(head_quantize="int8")) is None
    True
    """
    held = precision.head_quantize
    if held in ("none", "int8") or fits_block_linear(precision, held):
        return None
    return (
        f"the head can't be cut: its weights are {held} of ONNX Runtime's operators, whose columns "
        f"do not lie together; choose a block size of {KERNEL_BLOCKS} and accuracy level 4"
    )
