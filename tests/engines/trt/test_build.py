"""Plans are built in another process and checked here; every failure names its engine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from time import sleep
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from plan_requests import layer_request, needs_tensorrt_rtx

from skipdec.engines.errors import EngineBuildError, EnvironmentMismatchError
from skipdec.engines.host.gpus import Gpu, GpuSurvey
from skipdec.engines.manifest import PrecisionSpec, TensorRole, TensorSpec
from skipdec.engines.trt import build as trt_build
from skipdec.engines.trt.build import BuildOptions, PlanRequest, build_plan, check_options
from skipdec.engines.trt.library import TensorRtLibrary

HOPPER = GpuSurvey((Gpu(0, "NVIDIA H200", "9.0", 1 << 37),), "13.0")
ADA = GpuSurvey((Gpu(0, "NVIDIA L4", "8.9", 1 << 34),), "13.0")


@pytest.fixture(scope="module")
def request_of_layer(tmp_path_factory: pytest.TempPathFactory) -> PlanRequest:
    return layer_request(tmp_path_factory.mktemp("layer"))


@pytest.fixture
def output(tmp_path: Path) -> Iterator[Path]:
    """Yield the path of a plan, then check that nothing else remains."""
    others = children()  # of earlier tests: multiprocessing keeps a resource tracker
    yield tmp_path / "layer_000.plan"
    assert {path.name for path in tmp_path.iterdir()} <= {"layer_000.plan"}
    assert children() == others


def children() -> set[int]:
    """Return the processes that this thread started and has not waited for."""
    return {int(pid) for pid in Path("/proc/thread-self/children").read_text().split()}


def edited(request: PlanRequest, edit: Any) -> PlanRequest:  # noqa: ANN401
    """Return ``request`` with ``edit(graph)`` applied to its graph."""
    model = ir.from_proto(onnx.ModelProto.FromString(request.graph))
    edit(model.graph)
    return request.model_copy(update={"graph": ir.to_proto(model).SerializeToString()})


@needs_tensorrt_rtx
def test_a_plan_replaces_the_file_and_is_reported(
    request_of_layer: PlanRequest, output: Path
) -> None:
    output.write_bytes(b"old")
    mapped = np.memmap(output, np.uint8, "r")
    phases: list[tuple[str, int, int]] = []
    report = build_plan(request_of_layer, output, lambda *step: phases.append(step))
    assert bytes(mapped) == b"old"
    assert report.engine == "layer_000"
    assert report.plan_size == output.stat().st_size > 1000
    assert report.layer_counts["KV_CACHE_UPDATE"] == 2
    assert report.seconds > 0
    assert report.warnings == ()
    assert phases
    assert all(0 < step <= steps for _, step, steps in phases)


@needs_tensorrt_rtx
def test_all_differences_from_the_request_are_named(
    request_of_layer: PlanRequest, output: Path
) -> None:
    hidden_states, *others = request_of_layer.inputs
    wrong = request_of_layer.model_copy(
        update={
            "inputs": (
                hidden_states.model_copy(update={"dtype": "float32", "shape": ("B", "S", 65)}),
                *others[:-1],
            ),
            "outputs": request_of_layer.outputs[:1],
            "expected_layers": {"ATTENTION_INPUT": 2},
        }
    )
    with pytest.raises(EngineBuildError) as raised:
        build_plan(wrong, output)
    assert raised.value.subject == "engine layer_000"
    text = str(raised.value)
    for problem in (
        "input hidden_states is float16; requested: float32",
        "input hidden_states has shape (-1, -1, 64); requested: ('B', 'S', 65)",
        "input attention_mask was not requested",
        "output present_key was not requested",
        "has 1 ATTENTION_INPUT layers; expected: 2",
    ):
        assert problem in text


def add_unused_lengths(graph: ir.Graph) -> None:
    """Make Attention's nonpad_kv_seqlen an input, which the parser drops with a warning."""
    (attention,) = (node for node in graph if node.op_type == "Attention")
    lengths = ir.Value(
        name="seqlens_k", shape=ir.Shape(["B"]), type=ir.TensorType(ir.DataType.INT32)
    )
    graph.inputs.append(lengths)
    attention.resize_inputs(7)
    attention.replace_input_with(6, lengths)


def quantize_asymmetrically(graph: ir.Graph) -> None:
    product = next(node for node in graph if node.op_type == "MatMul")
    values = {"scale": np.asarray(0.05, np.float16), "zero": np.asarray(3, np.int8)}
    scale, zero = (ir.val(k, const_value=ir.tensor(v, name=k)) for k, v in values.items())
    graph.register_initializer(scale)
    graph.register_initializer(zero)
    quantize = ir.node("QuantizeLinear", [product.inputs[0], scale, zero])
    dequantize = ir.node("DequantizeLinear", [quantize.outputs[0], scale, zero])
    graph.insert_before(product, [quantize, dequantize])
    product.replace_input_with(0, dequantize.outputs[0])


@needs_tensorrt_rtx
def test_an_input_ignored_by_the_parser_fails_the_build(
    request_of_layer: PlanRequest, output: Path
) -> None:
    lengths = TensorSpec(name="seqlens_k", role=TensorRole.SEQLENS_K, dtype="int32", shape=("B",))
    profiles = tuple(
        {**profile, "seqlens_k": tuple(shape[:1] for shape in profile["hidden_states"])}
        for profile in request_of_layer.profiles
    )
    request = edited(request_of_layer, add_unused_lengths).model_copy(
        update={"inputs": (*request_of_layer.inputs, lengths), "profiles": profiles}
    )
    with pytest.raises(EngineBuildError, match=r"ignores part of the graph \(Unused Input: seqlen"):
        build_plan(request, output)
    assert not output.exists()


@needs_tensorrt_rtx
def test_asymmetric_quantisation_fails_with_the_parsers_reason(
    request_of_layer: PlanRequest, output: Path
) -> None:
    with pytest.raises(EngineBuildError, match="Non-zero zero point is not supported"):
        build_plan(edited(request_of_layer, quantize_asymmetrically), output)


@needs_tensorrt_rtx
def test_attention_without_a_kernel_gets_a_remedy(tmp_path: Path, output: Path) -> None:
    """Build float32 attention that must not be decomposed."""

    def forbid(graph: ir.Graph) -> None:
        (attention,) = (node for node in graph if node.op_type == "Attention")
        attention.attributes.pop("TRT_decomposable")

    directory = tmp_path / "graph"
    directory.mkdir()
    with pytest.raises(EngineBuildError) as raised:
        build_plan(edited(layer_request(directory, PrecisionSpec()), forbid), output)
    assert "no fused attention for this head size, number of heads and dtype" in str(raised.value)
    for path in directory.iterdir():
        path.unlink()
    directory.rmdir()


@needs_tensorrt_rtx
def test_too_little_workspace_gets_a_remedy(request_of_layer: PlanRequest, output: Path) -> None:
    options = request_of_layer.options.model_copy(update={"workspace": 1 << 16})
    with pytest.raises(EngineBuildError, match="allow more by workspace"):
        build_plan(request_of_layer.model_copy(update={"options": options}), output)


@needs_tensorrt_rtx
@pytest.mark.parametrize(
    ("number", "text"),
    [(signal.SIGSEGV, r"crashed \(SIGSEGV\)"), (signal.SIGKILL, "memory runs out; lower --jobs")],
)
def test_a_killed_builder_is_reported_as_its_engines_failure(
    number: int, text: str, request_of_layer: PlanRequest, output: Path
) -> None:
    others = children()

    def kill(*_: object) -> None:
        for pid in children() - others:
            os.kill(pid, number)

    with pytest.raises(EngineBuildError, match=f"engine layer_000 .*{text}"):
        build_plan(request_of_layer, output, kill)
    assert not output.exists()


@needs_tensorrt_rtx
def test_an_interrupt_ends_the_builder_and_leaves_no_file(
    request_of_layer: PlanRequest, output: Path
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_plan(request_of_layer, output, interrupt)
    assert not output.exists()


@needs_tensorrt_rtx
def test_a_signal_cancels_the_builder_at_its_next_step(
    request_of_layer: PlanRequest, output: Path
) -> None:
    """The signal is sent while the worker waits for its request, so it comes before the end."""
    command = [sys.executable, "-P", "-m", "skipdec.engines.trt.build_worker", str(output)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        while process.poll() is None and not catches(process.pid, signal.SIGTERM):
            sleep(0.01)
        process.send_signal(signal.SIGTERM)
        answer, _ = process.communicate(request_of_layer.model_dump_json())
    assert process.returncode == 0
    last = json.loads(answer.splitlines()[-1])
    assert last["error"]["problems"] == ["was cancelled"]
    assert not output.exists()


def catches(pid: int, number: int) -> bool:
    """Return whether a process has installed a handler of signal ``number``."""
    status = Path(f"/proc/{pid}/status").read_text()
    (caught,) = (line.split()[1] for line in status.splitlines() if line.startswith("SigCgt"))
    return bool(int(caught, 16) >> (number - 1) & 1)


def machine(
    monkeypatch: pytest.MonkeyPatch, target: str, capabilities: tuple[str, ...], gpus: GpuSurvey
) -> None:
    """Pretend that ``target`` is installed and that the machine has ``gpus``."""
    members = {f"SM{name.replace('.', '')}": object() for name in capabilities}
    module = SimpleNamespace()
    if members:
        module.ComputeCapability = SimpleNamespace(__members__={"CURRENT": object(), **members})
    library = TensorRtLibrary(target, module, "11.4.0.106")  # type: ignore[arg-type]
    monkeypatch.setattr(trt_build, "load_library", lambda _: library)
    monkeypatch.setattr(trt_build, "survey_gpus", lambda: gpus)


RTX = ("tensorrt-rtx", ("7.5", "8.9", "12.0"))
FULL: tuple[str, tuple[str, ...]] = ("tensorrt", ())


@pytest.mark.parametrize(
    ("library", "gpus", "options", "problems"),
    [
        (RTX, GpuSurvey(), {}, ["name the GPU to build for: 7.5, 8.9, 12.0"]),
        (RTX, HOPPER, {"compute_capability": "9.0"}, ["'9.0' can't be built for; allowed: 7.5,"]),
        (
            RTX,
            HOPPER,
            {},
            [
                "does not run on this machine's NVIDIA H200 of compute capability 9.0; allowed: "
                "7.5, 8.9, 12.0; on other GPUs use --target onnxruntime, which runs on CUDA, or "
                "--target tensorrt"
            ],
        ),
        (
            RTX,
            ADA,
            {"hardware_compatible": True, "version_compatible": True},
            ["does not support hardware-compatible", "does not support version-compatible"],
        ),
        (FULL, GpuSurvey(), {}, ["needs the GPU that it builds for, and this machine has none"]),
        (
            FULL,
            HOPPER,
            {"compute_capability": "8.9"},
            ["8.9 was asked for, this machine's has 9.0; build there"],
        ),
    ],
)
def test_unsupported_builds_are_refused_before_anything_starts(
    library: tuple[str, tuple[str, ...]],
    gpus: GpuSurvey,
    options: dict[str, Any],
    problems: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine(monkeypatch, *library, gpus)
    with pytest.raises(EnvironmentMismatchError) as raised:
        check_options(BuildOptions.model_validate({"target": library[0], **options}))
    assert len(raised.value.problems) == len(problems)
    for seen, wanted in zip(raised.value.problems, problems, strict=True):
        assert wanted in seen


@pytest.mark.parametrize(
    ("library", "gpus", "options"),
    [
        (RTX, ADA, {}),
        (RTX, HOPPER, {"compute_capability": "8.9"}),
        (RTX, GpuSurvey(), {"compute_capability": "8.9"}),
        (FULL, HOPPER, {"hardware_compatible": True, "version_compatible": True}),
        (FULL, HOPPER, {"compute_capability": "9.0"}),
    ],
)
def test_supported_builds_are_allowed_and_described(
    library: tuple[str, tuple[str, ...]],
    gpus: GpuSurvey,
    options: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine(monkeypatch, *library, gpus)
    facts = check_options(BuildOptions.model_validate({"target": library[0], **options}))
    assert facts.version == "11.4.0.106"
    assert facts.compute_capabilities == library[1]
    assert facts.gpu == (gpus.gpus[0].name if gpus.gpus else None)
    assert facts.driver == gpus.cuda
