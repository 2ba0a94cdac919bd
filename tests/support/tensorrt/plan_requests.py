"""Make requests for TensorRT plans of single engines of tiny random models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx_ir as ir
import pytest
from built_engines import RandomReader, tiny_spec
from canonical_graphs import canonical_graph

from skipdec.engines.host.installation import missing_modules
from skipdec.engines.manifest import EngineKind, ModelSpec, PrecisionSpec, TensorSpec
from skipdec.engines.trt.build import BuildOptions, PlanRequest, Profile
from skipdec.exporter.architecture.architecture import engine_parameters, quantized_parameters
from skipdec.exporter.architecture.weights import engine_name
from skipdec.exporter.building.engine import WeightsFile, encoded, store_tensors
from skipdec.exporter.graphs.lowering import LoweredEngine
from skipdec.exporter.graphs.tensorrt import (
    EXPECTED_LAYERS,
    bind_activation_scales,
    lower,
    with_capacity,
)

needs_tensorrt_rtx = pytest.mark.skipif(
    bool(missing_modules("tensorrt-rtx")),
    reason="builds with TensorRT-RTX: pip install 'skipdec[tensorrt-rtx]'",
)

CAPACITY = 32
OPTIONS = BuildOptions(target="tensorrt-rtx", compute_capability="8.9")
FP16 = PrecisionSpec(dtype="float16")


def fusible_spec(structure: str = "pre_norm", **changes: Any) -> ModelSpec:  # noqa: ANN401
    """Return ``tiny_spec`` with heads of 16, because TensorRT fuses no smaller ones."""
    return tiny_spec(structure, **{"hidden_size": 64, **changes})


def lowered_engine(
    kind: EngineKind, model: ModelSpec, precision: PrecisionSpec, directory: Path
) -> LoweredEngine:
    """Lower one engine (of layer 0 if it is a layer) for TensorRT, with weights in ``directory``.

    Quantised activations range up to 4.
    """
    lowered = lower(canonical_graph(kind, model, precision.dtype), kind, model, precision)
    bind_activation_scales(lowered, kind, dict.fromkeys(quantized_parameters(kind, model), 4.0))
    layer_index = 0 if kind is EngineKind.LAYER else None
    reader = RandomReader(model)
    with WeightsFile(directory / f"{engine_name(kind, layer_index)}.weights") as weights:
        for parameter in engine_parameters(kind, model, layer_index):
            tensors = encoded(parameter.name, parameter.load(reader), lowered)
            store_tensors(tensors, lowered, weights)
    return lowered


def plan_request(lowered: LoweredEngine, kind: EngineKind, directory: Path) -> PlanRequest:
    """Request a plan of ``lowered`` for decoding 4 rows and for a prompt of 2 rows of 8 tokens."""
    signature = lowered.signature
    return PlanRequest(
        engine=engine_name(kind, 0 if kind is EngineKind.LAYER else None),
        graph=ir.to_proto(with_capacity(lowered.graph, CAPACITY)).SerializeToString(),
        weights_path=directory / "graph.onnx",
        profiles=tuple(
            _profile(signature.inputs, sizes)
            for sizes in ({"B": 4, "S": 1, "R": 4}, {"B": 2, "S": 8, "R": 64})
        ),
        inputs=signature.inputs,
        outputs=signature.outputs,
        expected_layers=EXPECTED_LAYERS.get(kind, {}),
        options=OPTIONS,
    )


def layer_request(directory: Path, precision: PrecisionSpec = FP16) -> PlanRequest:
    """Request a plan of a small decoder layer."""
    kind = EngineKind.LAYER
    return plan_request(lowered_engine(kind, fusible_spec(), precision, directory), kind, directory)


def _profile(inputs: tuple[TensorSpec, ...], largest: dict[str, int]) -> Profile:
    most = {**largest, "T": CAPACITY}
    least = {**dict.fromkeys(largest, 1), "T": CAPACITY}

    def shape(spec: TensorSpec, sizes: dict[str, int]) -> tuple[int, ...]:
        return tuple(sizes[size] if isinstance(size, str) else size for size in spec.shape)

    return {
        spec.name: (shape(spec, least), shape(spec, most), shape(spec, most)) for spec in inputs
    }
