"""Refuse a manifest with engines that the runtime can't run, naming each wrong tensor."""

from __future__ import annotations

from typing import Any

import pytest
from hollow_bundles import hollow_manifest

from skipdec.engines.bundle.contract import check_contract
from skipdec.engines.errors import BundleError
from skipdec.engines.manifest import EngineKind, Manifest, TensorRole, TensorSpec

_ROLES: dict[EngineKind, tuple[tuple[str, ...], tuple[str, ...]]] = {
    EngineKind.EMBED: (("input_ids",), ("hidden_states_out",)),
    EngineKind.LAYER: (
        ("hidden_states", "past_key", "past_value", "write_indices"),
        ("hidden_states_out", "present_key", "present_value"),
    ),
    EngineKind.HEAD: (("hidden_states", "row_positions"), ("logits",)),
}


def manifest(hidden: str, cache: str, width: int, **facts: Any) -> Manifest:  # noqa: ANN401
    """Return a manifest of one layer with these dtypes of activations and cache and this width."""
    hollow = hollow_manifest(1)
    formats = {name: facts.pop(name) for name in ("dtype", "kv_dtype") if name in facts}
    precision = hollow.precision.model_copy(update=formats)
    shapes: dict[str, tuple[str, tuple[int | str, ...]]] = {
        "input_ids": ("int64", ("B", "S")),
        "row_positions": ("int64", ("R",)),
        "write_indices": ("int64", ("B",)),
        "logits": ("float32", ("R", 32)),
        "hidden_states": (hidden, ("B", "S", 8)),
        "hidden_states_out": (hidden, ("B", "S", 8)),
        **dict.fromkeys(
            ("past_key", "past_value", "present_key", "present_value"),
            (cache, ("B", 2, "T", width)),
        ),
    }

    def tensor(role: str) -> TensorSpec:
        dtype, shape = shapes[role]
        return TensorSpec.model_validate(
            {"name": role, "role": TensorRole(role), "dtype": dtype, "shape": shape}
        )

    engines = tuple(
        spec.model_copy(
            update={
                name: tuple(map(tensor, roles))
                for name, roles in zip(("inputs", "outputs"), _ROLES[spec.kind], strict=True)
            }
        )
        for spec in hollow.engines
    )
    return hollow.model_copy(update={"engines": engines, "precision": precision, **facts})


@pytest.mark.parametrize(
    "described",
    [
        manifest("float32", "float32", 4),
        manifest("float16", "float16", 4, dtype="float16"),
        manifest("float32", "float16", 4, dtype="float16", kernels="skipdec"),
        manifest("float32", "bfloat16", 4, kv_dtype="bfloat16", kernels="skipdec"),
        manifest("float32", "int8", 8, dtype="float16", kv_dtype="int8", kernels="skipdec"),
    ],
)
def test_engines_the_runtime_can_run_pass(described: Manifest) -> None:
    check_contract(described)


@pytest.mark.parametrize(
    ("described", "problem"),
    [
        (
            manifest("float16", "float16", 4, dtype="float16", kernels="skipdec"),
            "hidden_states is float16; expected float32",
        ),
        (
            manifest("float32", "float32", 4, kv_dtype="float16", kernels="skipdec"),
            "past_key is float32; expected float16",
        ),
        (
            manifest("float32", "int8", 4, kv_dtype="int8", kernels="skipdec"),
            r"past_value is \('B', 2, 'T', 4\); expected \('B', 2, 'T', 8\)",
        ),
    ],
)
def test_engines_the_runtime_cannot_run_are_refused(described: Manifest, problem: str) -> None:
    with pytest.raises(BundleError, match=problem):
        check_contract(described)
