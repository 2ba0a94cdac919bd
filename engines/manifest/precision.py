"""The number formats of a bundle, and which of them skipdec's kernels know."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from .fields import Integer, Record, Sha256, without_nulls

FloatType = Literal["float32", "float16", "bfloat16"]
KVType = Literal["float32", "float16", "bfloat16", "int8"]
Kernels = Literal["skipdec"]
Quantization = Literal["none", "int8", "int8-block", "int4", "fp8"]

KERNEL_BLOCK_SIZES = (32, 64, 128)  # that skipdec's kernels read


class PrecisionSpec(Record):
    """Number formats of a bundle: activations, KV cache and float weights; quantised weights.

    With skipdec's kernels activations are float32, and ``dtype`` is that of the weights.
    """

    dtype: FloatType = "float32"
    quantize: Quantization = "none"
    head_quantize: Quantization = "none"
    block_size: Integer | None = Field(default=None, description="int4 and int8-block only")
    accuracy_level: Integer | None = Field(
        default=None, description="accuracy_level of MatMulNBits: 0 exact, 4 int8"
    )
    activation_ranges: Sha256 | None = Field(
        default=None, description="TensorRT int8 and fp8: digest of the ranges of activations"
    )
    kv_dtype: KVType | None = Field(
        default=None, description="type of the KV cache, skipdec's kernels only; absent: dtype"
    )
    table_dtype: FloatType | None = Field(
        default=None, description="type of embedding tables, skipdec's kernels only; absent: dtype"
    )

    @model_serializer(mode="wrap")
    def _without_absent(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out absent fields, because most bundles have none of them."""
        return without_nulls(serialize(self), "kv_dtype", "table_dtype")
