"""Every TensorRT name in our code exists in every TensorRT that we support.

scripts/environments/tensorrt_surface.py makes the surfaces in tests/data from NVIDIA's bindings.
tests/support/tensorrt/tensorrt_names.py describes how a name is attributed to a class; it misses
names reached through other variables.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from tensorrt_names import MODULE, RETURNS, VARIABLES, Use, find_uses

ROOT = Path(__file__).parents[3]
SURFACES = ROOT / "tests" / "data" / "tensorrt_surfaces"
OLDEST, NEWEST, RTX = "tensorrt-10.16", "tensorrt-11", "tensorrt-rtx-1.7"

# Code, or comments on the type of a variable: library.module, trt.IBuilderConfig
TENSORRT = re.compile(r"\btrt\.[A-Z]|library\.module")

# Variables of ours that share a name with TensorRT's: (function, name).
OURS = {
    ("TensorRtSession._choose_profile", "problems"),  # shapes of a profile
    ("build_plan", "replace"),  # the plan's path
    ("error_recorder.Recorder", "take"),  # our options, not TensorRT's
}
# Names that only TensorRT for RTX has, by the functions that may use them, with their guards.
RTX_ONLY = {
    # calls hasattr first
    "TensorRtLibrary.compute_capabilities": {"ComputeCapability"},
    # returns at once if library.compute_capabilities is empty
    "PlanBuilder._choose_gpu": {
        "ComputeCapability",
        "CURRENT",
        "num_compute_capabilities",
        "set_compute_capability",
    },
    # a method of the class of that target's backend
    "TensorRtRtxBackend.context_settings": {
        "DynamicShapesKernelSpecializationStrategy",
        "EAGER",
        "LAZY",
        "dynamic_shapes_kernel_specialization_strategy",
    },
}


@dataclass(frozen=True)
class Surface:
    """The names of one version of TensorRT."""

    version: str
    classes: dict[str, list[str]]
    others: list[str]

    def has(self, use: Use) -> bool:
        if use.owner == MODULE:
            return use.name in self.classes or use.name in self.others
        return use.name in self.classes.get(use.owner, ())


@cache
def surfaces() -> dict[str, Surface]:
    """Return the surfaces by target and version."""
    documents = {path.stem: json.loads(path.read_text()) for path in SURFACES.glob("*.json")}
    return {
        name: Surface(document["version"], document["classes"], document["others"])
        for name, document in documents.items()
    }


def missing(source: str) -> dict[Use, list[str]]:
    """Return names that ``source`` uses, with the versions that should have them but don't."""
    found = {}
    for use in find_uses(source):
        if (use.function, use.name) in OURS:
            continue
        rtx_only = use.name in RTX_ONLY.get(use.function, ())
        expected = [name for name in surfaces() if not rtx_only or name.startswith("tensorrt-rtx")]
        if without := [name for name in expected if not surfaces()[name].has(use)]:
            found[use] = without
    return found


def sources() -> dict[str, str]:
    """Return the modules that handle TensorRT's objects, by path."""
    paths = [*ROOT.glob("engines/**/*.py"), *ROOT.glob("exporter/**/*.py")]
    texts = {str(path.relative_to(ROOT)): path.read_text() for path in paths}
    return {path: text for path, text in texts.items() if TENSORRT.search(text)}


@pytest.mark.parametrize("version", [OLDEST, NEWEST, RTX])
def test_a_surface_of_each_supported_version_is_recorded(version: str) -> None:
    assert any(name.startswith(version) for name in surfaces())


@pytest.mark.parametrize("path", sorted(sources()))
def test_every_name_exists_in_every_version(path: str) -> None:
    text = [
        f"{use} is not in {', '.join(names)}" for use, names in missing(sources()[path]).items()
    ]
    assert text == []


def test_the_scan_finds_uses_in_the_code() -> None:
    uses = {(use.owner, use.name) for text in sources().values() for use in find_uses(text)}
    assert {
        ("Builder", "build_serialized_network"),
        ("IBuilderConfig", "add_optimization_profile"),
        ("ICudaEngine", "get_aliased_input_tensor"),
        ("IErrorRecorder", "report_error"),
        ("IExecutionContext", "execute_async_v3"),
        ("MemoryPoolType", "WORKSPACE"),
        ("OnnxParser", "parse"),
        ("Runtime", "deserialize_cuda_engine"),
    } <= uses


def test_version_specific_names_are_used_only_in_guarded_functions() -> None:
    guarded = {name for names in RTX_ONLY.values() for name in names}
    seen: dict[str, set[str]] = {}
    for text in sources().values():
        for use in find_uses(text):
            if use.name in guarded:
                seen.setdefault(use.function, set()).add(use.name)
    assert seen == RTX_ONLY


def test_the_classes_of_known_variables_exist_in_every_version() -> None:
    for surface in surfaces().values():
        assert {*VARIABLES.values(), *RETURNS.values()} - {MODULE} <= surface.classes.keys()


@pytest.mark.parametrize(
    ("statement", "wrong"),
    [
        ("builder.create_network(0)", None),
        ("builder.create_netwrok(0)", "Builder.create_netwrok"),
        ("builder.create_builder_config().set_flags(1)", "IBuilderConfig.set_flags"),
        ("self._engine.num_io_tensor", "ICudaEngine.num_io_tensor"),
        ("trt.MemoryPoolType.WORKSPAC", "MemoryPoolType.WORKSPAC"),
        ("trt.MemoryPoolTypes", "MemoryPoolTypes"),
        ("self._library.module.Logger.Severity.WARN", "Logger.Severity.WARN"),
        ("pools = library.module.MemoryPoolType; pools.DLA_SRAM", "MemoryPoolType.DLA_SRAM"),
        ("trt.BuilderFlag.FP16", "BuilderFlag.FP16"),  # removed in 11.0
        ("trt.ComputeCapability.SM89", "ComputeCapability.SM89"),  # has no guard here
        ("network.get_layer(0).type.nme", "LayerType.nme"),
        ("trt.OnnxParser(network, log).prase(data)", "OnnxParser.prase"),
    ],
)
def test_a_wrong_name_is_noticed(statement: str, wrong: str | None) -> None:
    source = f"def function(builder: Any, network: Any) -> None:\n    {statement}\n"
    found = {f"{use.owner}.{use.name}".lstrip(".") for use in missing(source)}
    assert found >= ({wrong} if wrong else set())
    assert bool(found) == bool(wrong)


def test_a_wrong_override_is_noticed() -> None:
    source = "class Recorder(trt.IErrorRecorder):\n    def report_errors(self): ...\n"
    assert [use.name for use in missing(source)] == ["report_errors"]


def test_variables_annotated_with_our_types_are_ignored() -> None:
    assert list(find_uses("def function(config: BenchConfig):\n    config.seed\n")) == []
