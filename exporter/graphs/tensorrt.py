"""Lowering of canonical graphs to ONNX that TensorRT's parser accepts, without own operators.

Quantised weights become DequantizeLinear nodes before their products. With activation ranges, the
other operand gets QuantizeLinear and DequantizeLinear, too, and TensorRT runs the product in int8
or fp8; without ranges, only the weights are smaller.

TensorScatter becomes an in-place KV-cache update. Attention stays one operator, fused for float16
and bfloat16; float32 has no fused kernel, so the node is marked as decomposable.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import onnx_ir as ir

from ...engines.errors import UnsupportedModelError
from ...engines.manifest import EngineKind, FloatType, ModelSpec, PrecisionSpec
from ..architecture.architecture import (
    canonical_signature,
    kind_parameters,
    quantized_parameters,
)
from ..quantization.linear import (
    FLOAT8_MAXIMUM,
    INT8_MAXIMUM,
    LinearBlockQuantizer,
    LinearChannelQuantizer,
    weight_quantizer,
)
from ..quantization.quantize import WeightQuantizer, quantization
from ..quantization.ranges import Ranges, quantizes_activations
from .lowering import (
    LoweredEngine,
    attention_node,
    constant,
    initializer,
    products_by_weight,
    quantized_weight,
)

EXPECTED_LAYERS = {
    EngineKind.LAYER: {"KV_CACHE_UPDATE": 2, "ATTENTION_INPUT": 1},
}
"""Layers that the parser must create for an engine's graph, by TensorRT's type names."""

DECOMPOSABLE = "TRT_decomposable"  # a TensorRT-specific attribute of Attention

_ACTIVATION_SCALE = "activation_scale"
_ATTENTION_INPUTS = 4  # query, key, value, mask; the parser rejects or silently drops others
# TensorRT-RTX 1.7.1 builds fused attention for these and rejects others.
_FUSED_HEAD_SIZES = range(16, 257, 8)
_FEWEST_FUSED_HEADS = 4
# The first compute capability whose tensor cores support a format.
_OLDEST_GPUS = {"bfloat16": "8.0", "fp8": "8.9"}


def lower(
    graph: ir.Model, kind: EngineKind, model: ModelSpec, precision: PrecisionSpec
) -> LoweredEngine:
    """Return a lowered copy of the canonical ``graph``, as described at the top of this file.

    Scales of quantised activations have no data yet (``bind_activation_scales``), and the KV
    capacity T stays a symbol (``with_capacity``). `check_model` has accepted the model.
    """
    lowered = graph.clone()
    if kind is EngineKind.LAYER:
        _prepare_attention(lowered.graph, precision.dtype)
    quantizer = weight_quantizer(kind, precision)
    quantizers: dict[str, WeightQuantizer] = {}
    if quantizer is not None:
        quantizers = dict.fromkeys(quantized_parameters(kind, model), quantizer)
        _quantize_products(lowered.graph, kind, precision, quantizers)
    signature = canonical_signature(kind, model, precision.dtype)
    return LoweredEngine(lowered, signature, precision, quantizers)


def check_model(
    model: ModelSpec, precision: PrecisionSpec, compute_capability: str | None = None
) -> None:
    """Raise UnsupportedModelError, with every reason, if TensorRT can't build ``model``.

    ``compute_capability`` is that of the GPU to build for, None if unknown. The
    configuration has checked that fp8 has ranges.
    """
    problems = [
        *_format_problems(precision, compute_capability),
        *_attention_problems(model, precision.dtype),
        *block_problems(model, precision),
    ]
    if problems:
        raise UnsupportedModelError(model.name, *problems)


def bind_activation_scales(lowered: LoweredEngine, kind: EngineKind, ranges: Ranges) -> None:
    """Set the scales of quantised activations to ``max|x| / 127`` or ``/ 448``.

    ``ranges`` are those of one engine, by weight, already checked. Does nothing for an engine that
    quantises no activations.
    """
    if not quantizes_activations(kind, lowered.precision):
        return
    is_fp8 = quantization(kind, lowered.precision) == "fp8"
    maximum = FLOAT8_MAXIMUM if is_fp8 else INT8_MAXIMUM
    for parameter in lowered.quantizers:
        name = f"{parameter}.{_ACTIVATION_SCALE}"
        scale = np.asarray(ranges[parameter] / maximum).astype(lowered.precision.dtype)
        lowered.graph.graph.initializers[name].const_value = ir.tensor(scale, name=name)


def with_capacity(model: ir.Model, capacity: int) -> ir.Model:
    """Return a copy of a lowered graph for one KV capacity: T is ``capacity`` in its signature.

    TensorRT's parser requires a fixed T. Weights are shared with ``model``, not copied. A graph
    without T is copied unchanged.
    """
    copy = model.clone()
    for value in (*copy.graph.inputs, *copy.graph.outputs):
        assert value.shape is not None, value.name
        value.shape = ir.Shape([capacity if str(size) == "T" else size for size in value.shape])
    return copy


def _format_problems(precision: PrecisionSpec, compute_capability: str | None) -> Iterator[str]:
    if compute_capability is None:
        return
    for name in dict.fromkeys((precision.dtype, precision.quantize, precision.head_quantize)):
        oldest = _OLDEST_GPUS.get(name)
        if oldest is not None and float(compute_capability) < float(oldest):
            yield (
                f"{name} is not supported by GPUs of compute capability {compute_capability}; "
                f"needed: {oldest} or later; choose another --dtype or --quantize"
            )


def _attention_problems(model: ModelSpec, dtype: FloatType) -> Iterator[str]:
    if dtype == "float32":
        return
    instead = "use --dtype float32"
    if model.head_dim not in _FUSED_HEAD_SIZES:
        sizes = _FUSED_HEAD_SIZES
        yield (
            f"heads are {model.head_dim} wide; TensorRT fuses {dtype} attention for multiples of "
            f"{sizes.step} from {sizes.start} to {sizes[-1]}; {instead}"
        )
    if model.num_heads < _FEWEST_FUSED_HEADS:
        yield (
            f"has {model.num_heads} heads; TensorRT fuses {dtype} attention of "
            f"{_FEWEST_FUSED_HEADS} or more; {instead}"
        )


def block_problems(model: ModelSpec, precision: PrecisionSpec) -> Iterator[str]:
    """Yield weights whose input size the block size does not divide; TensorRT can't pad them."""
    for kind in (EngineKind.LAYER, EngineKind.HEAD):
        quantizer = weight_quantizer(kind, precision)
        if not isinstance(quantizer, LinearBlockQuantizer):
            continue
        for parameter in kind_parameters(kind, model):
            if parameter.is_product and parameter.shape[0] % quantizer.block_size:
                yield (
                    f"{parameter.name} has {parameter.shape[0]} inputs, which blocks of "
                    f"{quantizer.block_size} do not divide; choose another --block-size"
                )


def _prepare_attention(graph: ir.Graph, dtype: FloatType) -> None:
    attention = attention_node(graph)
    extra = [value for value in attention.inputs[_ATTENTION_INPUTS:] if value is not None]
    if extra:
        names = ", ".join(str(value.name) for value in extra)
        raise UnsupportedModelError(
            "the canonical graph",
            f"Attention takes {names} besides query, key, value and mask; TensorRT's parser "
            "silently drops such inputs; put lengths into the mask",
        )
    if dtype == "float32":
        attention.attributes[DECOMPOSABLE] = ir.AttrInt64(DECOMPOSABLE, 1)


def _quantize_products(
    graph: ir.Graph,
    kind: EngineKind,
    precision: PrecisionSpec,
    quantizers: Mapping[str, WeightQuantizer],
) -> None:
    """Make the products of an engine of ``kind`` read quantised weights, in place."""
    products = products_by_weight(graph)
    for name, quantizer in quantizers.items():
        product = products[name]
        _dequantize_weight(graph, product, quantizer)
        if quantizes_activations(kind, precision):
            _quantize_activation(graph, product, name, precision, quantization(kind, precision))


def _dequantize_weight(graph: ir.Graph, product: ir.Node, quantizer: WeightQuantizer) -> None:
    """Replace MatMul(x, w) by MatMul(x, DequantizeLinear(codes of w, scales))."""
    _, _, tensors = quantized_weight(graph, product, quantizer)
    attributes = {}
    if isinstance(quantizer, LinearChannelQuantizer):
        attributes = {"axis": 1}
    elif isinstance(quantizer, LinearBlockQuantizer):
        attributes = {"axis": 0, "block_size": quantizer.block_size}
    node = ir.node("DequantizeLinear", [*tensors.values()], attributes)
    graph.insert_before(product, node)
    product.replace_input_with(1, node.outputs[0])


def _quantize_activation(
    graph: ir.Graph, product: ir.Node, weight: str, precision: PrecisionSpec, choice: str
) -> None:
    """Quantise x of MatMul(x, w) with one scale, by QuantizeLinear and DequantizeLinear."""
    scale = initializer(graph, f"{weight}.{_ACTIVATION_SCALE}", precision.dtype, ())
    code = ir.DataType.FLOAT8E4M3FN if choice == "fp8" else ir.DataType.INT8
    # The zero point's dtype determines that of the codes.
    zero_point = constant(graph, "activation_zero_point", np.zeros((), code.numpy()))
    quantize = ir.node("QuantizeLinear", [product.inputs[0], scale, zero_point])
    dequantize = ir.node("DequantizeLinear", [quantize.outputs[0], scale, zero_point])
    graph.insert_before(product, [quantize, dequantize])
    product.replace_input_with(0, dequantize.outputs[0])
