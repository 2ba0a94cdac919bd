"""Refuse plans that this machine can't run or that differ from the manifest."""

from __future__ import annotations

import json
from typing import Any

import pytest
from fake_tensorrt import VERSION
from host_device import HostDevice
from tensorrt_machine import Compiled, Machine, edit_plan

from skipdec.engines.errors import BundleError, EnvironmentMismatchError, MissingExtraError
from skipdec.engines.trt.backend import TensorRtRtxBackend
from skipdec.engines.trt.library import load_library


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"aliases": {}}, r"present_key is written to None; expected past_key, in place"),
        ({"outputs": []}, r"has the tensors .*; the manifest says .*present_value"),
    ],
)
def test_a_plan_that_contradicts_the_manifest_is_refused(
    machine: Machine, compiled: Compiled, changes: dict[str, Any], words: str
) -> None:
    bundle = compiled()
    edit_plan(bundle, bundle.manifest.layers[0], **changes)
    with pytest.raises(BundleError, match=words):
        machine.load(bundle)


def test_every_mismatched_tensor_is_named(machine: Machine, compiled: Compiled) -> None:
    bundle = compiled()
    spec = bundle.manifest.layers[0]
    plan = json.loads(bundle.file(spec.graph).read_text())
    plan["inputs"][0]["dtype"] = "float16"
    plan["inputs"][1]["shape"][1] += 1
    edit_plan(bundle, spec, inputs=plan["inputs"])
    with pytest.raises(BundleError) as caught:
        machine.load(bundle)
    assert "hidden_states is HALF; the manifest says float32" in str(caught.value)
    assert "past_key is (-1, 5, 16, 8); expected ('B', 4, 16, 8)" in str(caught.value)


@pytest.mark.parametrize(
    ("here", "build", "problem"),
    [
        ({"version": "10.16.2.0"}, {}, f"TensorRT {VERSION}; installed here: 10.16.2.0"),
        ({"version": "11.4.0.106"}, {"version_compatible": True}, "installed here: 11.4"),
        ({"version": "10.15.0.1"}, {"version_compatible": True}, "installed here: 10.15"),
        ({}, {"version": "x", "version_compatible": True}, "TensorRT x; installed here"),
        ({}, {"compute_capability": "8.\u00b2", "hardware_compatible": True}, "GPU has 8.9"),
        ({"compute_capability": "9.0"}, {}, "compute capability 8.9; this GPU has 9.0"),
        ({"compute_capability": "7.5"}, {"hardware_compatible": True}, "this GPU has 7.5"),
    ],
)
def test_plans_for_another_machine_are_refused_with_a_rebuild_command(
    compiled: Compiled, here: dict[str, str], build: dict[str, Any], problem: str
) -> None:
    bundle = compiled(**build)
    with pytest.raises(EnvironmentMismatchError) as caught:
        Machine(**here).load(bundle)
    assert problem in str(caught.value)
    assert f"skipdec build {bundle.path} --target tensorrt" in str(caught.value)


@pytest.mark.parametrize(
    ("here", "build"),
    [
        ({"version": "10.17.0.1"}, {"version_compatible": True}),
        ({"compute_capability": "12.0"}, {"hardware_compatible": True}),
    ],
)
def test_plans_run_on_compatible_gpus(
    compiled: Compiled, here: dict[str, str], build: dict[str, Any]
) -> None:
    machine = Machine(**here)
    machine.bind(machine.load(compiled(**build)), rows=1)


def test_a_broken_plan_is_named_with_tensorrts_error(machine: Machine, compiled: Compiled) -> None:
    bundle = compiled()
    bundle.file(bundle.manifest.head.graph).write_bytes(b"not a plan")
    with pytest.raises(BundleError, match=r"head .*TensorRT can't load it: .*no header"):
        machine.load(bundle, "head")


def test_the_real_library_says_why_it_refuses_a_fake_plan(compiled: Compiled) -> None:
    try:
        library = load_library("tensorrt-rtx")
    except MissingExtraError as error:
        pytest.skip(str(error))
    bundle = compiled(target="tensorrt-rtx", version=library.version)
    backend = TensorRtRtxBackend(device=HostDevice(), library=library)
    with pytest.raises(BundleError, match=r"head .*TensorRT can't load it: .*Error Code"):
        backend.load(bundle, bundle.manifest.head)
