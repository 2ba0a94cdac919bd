"""Which products skipdec's kernels compute; in a bundle for them ONNX Runtime computes the rest."""

from __future__ import annotations

from ..manifest import PrecisionSpec

INT4_BLOCK_SIZES = (32, 64, 128)  # of the operator BlockLinear4
INT4_ACCURACY_LEVEL = 4  # of the same


def fits_block_linear4(precision: PrecisionSpec) -> bool:
    """Return whether the kernels have products of this bundle's int4 weights."""
    return (
        precision.block_size in INT4_BLOCK_SIZES and precision.accuracy_level == INT4_ACCURACY_LEVEL
    )


def foreign_products(precision: PrecisionSpec) -> tuple[str, ...]:
    """Return the kinds of weights, each once, whose products ONNX Runtime computes.

    Their bits may depend on how many tokens share a call: on AVX-512 those of int8-block do.

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
