"""Checks before anything runs: the bundle's identity and the memory that it needs."""

from __future__ import annotations

import math

import onnx

from ...engines.bundle import EngineBundle
from ...engines.errors import SkipDecError, VerificationError
from ...engines.manifest import EngineKind, Kernels, ModelSpec, PrecisionSpec
from ...engines.targets import target_of
from ..architecture.architecture import engine_parameters
from ..config import CANONICAL
from ..graphs.dtypes import check_dtypes
from ..quantization.migration import MIGRATION, Migration
from ..quantization_config import draft_layer_precision


def check_identity(
    bundle: EngineBundle, model: ModelSpec, precision: PrecisionSpec, kernels: Kernels | None
) -> None:
    """Raise VerificationError if the bundle's structure or precision is not the requested one."""
    manifest = bundle.manifest
    # An export may rename a checkpoint, limit its length, and recommend other sampling.
    free = {"name", "max_seq_len", "sampling_defaults"}
    built = dict(manifest.model) | dict(manifest.precision) | {"kernels": manifest.kernels}
    requested = dict(model) | dict(precision) | {"kernels": kernels}
    is_same_family = manifest.model.family == model.family  # else most other fields differ, too
    if problems := [
        f"{field} is {built.get(field)!r} in the bundle; requested: {requested.get(field)!r}"
        for field in (built | requested if is_same_family else ("family",))
        if field not in free and built.get(field) != requested.get(field)
    ]:
        raise VerificationError(str(bundle.path), *problems)


def check_migration(bundle: EngineBundle, migration: Migration | None) -> None:
    """Raise VerificationError unless the bundle's weights were migrated by ``migration``."""
    built = bundle.manifest.source.get(MIGRATION)
    requested = None if migration is None else migration.digest
    if built == requested:
        return
    if built is None:
        problem = "its weights are the checkpoint's own, not migrated ones; leave --ranges out"
    elif requested is None:
        problem = "outliers were migrated into its weights; pass the file as --ranges"
    else:
        problem = (
            f"its weights were migrated by factors {built[:12]}…, not these, {requested[:12]}…"
        )
    raise VerificationError(str(bundle.path), problem)


def checked_graphs(bundle: EngineBundle) -> dict[str, onnx.GraphProto]:
    """Return the ONNX graphs by path, without weights; the builder has already checked plans.

    Raises VerificationError, for all engines at once, if dtypes differ from the request.
    """
    manifest = bundle.manifest
    float_precision = PrecisionSpec(dtype=manifest.precision.dtype)
    requested = [(spec, float_precision, CANONICAL) for spec in manifest.canonical]
    if not target_of(manifest.target).is_compiled:
        own, form = manifest.precision, manifest.form
        requested += [(spec, own, form) for spec in manifest.all_engines]
        if manifest.draft_head is not None:
            requested.append((manifest.draft_head.engine, own, form))
        if manifest.trained_draft is not None:
            drafted = draft_layer_precision(own, form)
            requested += [(spec, drafted, form) for spec in manifest.trained_draft.engines]
    graphs: dict[str, onnx.GraphProto] = {}
    problems: list[str] = []
    for spec, precision, target in requested:
        graph = onnx.load(bundle.locate(spec.graph), load_external_data=False).graph
        graphs[spec.graph] = graph
        try:
            check_dtypes(graph, spec, manifest.model, precision, target)
        except SkipDecError as error:
            problems += [f"{error.subject}: {problem}" for problem in error.problems]
    if problems:
        raise VerificationError(str(bundle.path), *problems)
    return graphs


def loaded_bytes(bundle: EngineBundle) -> int:
    """Estimate the memory of all loaded engines: weights as stored, or float16 widened."""
    sizes = {record.path: record.size for record in bundle.manifest.files}
    stored = sum(sizes[path] for spec in bundle.manifest.engines for path in spec.weights)
    return stored * 2 if bundle.manifest.hidden_dtype == "float16" else stored


def reference_bytes(model: ModelSpec) -> int:
    """Estimate the memory of the whole reference model, in float32."""
    kinds = [(EngineKind.EMBED, None), (EngineKind.HEAD, None)]
    layers = [(EngineKind.LAYER, index) for index in range(model.num_layers)]
    return 4 * sum(
        math.prod(parameter.shape)
        for kind, index in [*kinds, *layers]
        for parameter in engine_parameters(kind, model, index)
    )
