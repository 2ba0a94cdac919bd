"""Verification passes correct bundles and names the engine of any fault."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import command_line
import numpy as np
import onnx
import pytest
from fixture_types import Checkpoints, Exported
from mutations import copy_bundle, edit_graph, edit_parameters, narrow_window, reseal
from verified_bundles import verified as verified_against

from skipdec.engines.bundle import EngineBundle
from skipdec.engines.errors import BundleError, CheckpointError, VerificationError
from skipdec.engines.host.worker import Worker, WorkerCrashError, WorkerLines
from skipdec.engines.manifest import Manifest, PrecisionSpec
from skipdec.exporter.architecture.weights import Parameter
from skipdec.exporter.config import GIB, CheckpointSource, ExportConfig
from skipdec.exporter.pipeline.exporting import export
from skipdec.exporter.verification import process as verify
from skipdec.exporter.verification import worker
from skipdec.exporter.verification.report import VerificationReport, VerificationRequest
from skipdec.runtime.stitching.host.buffers import StepBuffers

Array = np.ndarray[Any, Any]
Verify = Callable[..., VerificationReport]


@pytest.fixture
def verified(checkpoint: Checkpoints) -> Verify:
    """Return ``verified(bundle, structure, **config)``, which verifies in this process."""

    def run(
        bundle: Path,
        structure: str = "pre_norm",
        *,
        verify_memory: int = 8 * GIB,
        **options: Any,  # noqa: ANN401
    ) -> VerificationReport:
        model, chosen = checkpoint(structure), {"kernels": "onnxruntime"} | options
        precision = ExportConfig(model=str(model), **chosen).precision()  # as ``exported``
        own = Manifest.from_json((bundle / "manifest.json").read_bytes(), str(bundle)).kernels
        request = {"precision": precision, "kernels": own, "verify_memory": verify_memory}
        return verified_against(bundle, model, **request)

    return run


@pytest.mark.parametrize(
    ("structure", "options"),
    [
        ("pre_norm", {}),
        ("post_norm", {}),
        ("no_bias", {}),
        ("untied", {}),
        ("pre_norm", {"dtype": "float16"}),
        ("post_norm", {"dtype": "float16"}),
        ("llama", {"dtype": "float16"}),
    ],
)
def test_float_bundles_pass_for_every_engine_and_token(
    structure: str, options: dict[str, str], exported: Exported, verified: Verify
) -> None:
    report = verified(exported(structure, **options), structure, **options)
    assert report.problems == []
    assert [check.engine for check in report.engines] == ["embed", *LAYERS, "head", "candidates"]
    assert report.tokens is not None
    assert report.tokens.compared == report.tokens.equal + report.tokens.ties == 128
    assert report.tokens.equal > 112


LAYERS = [f"layer_{index:03d}" for index in range(6)]
QUANTIZATIONS: list[dict[str, Any]] = [
    {"quantize": "int8"},
    {"quantize": "int8", "dtype": "float16"},
    {"quantize": "int4", "block_size": 16},
    {"quantize": "int4", "block_size": 16, "accuracy_level": 0},
    {"quantize": "int4", "block_size": 16, "dtype": "float16"},
    {"quantize": "int8-block", "block_size": 16},
    {"quantize": "int8-block", "block_size": 16, "accuracy_level": 0},
    {"quantize": "int4", "block_size": 16, "head_quantize": "none"},
]


@pytest.mark.parametrize("options", QUANTIZATIONS, ids=lambda o: "-".join(map(str, o.values())))
def test_quantised_bundles_pass_and_only_report_their_agreement(
    options: dict[str, Any], exported: Exported, verified: Verify
) -> None:
    report = verified(exported("pre_norm", **options), **options)
    assert report.problems == []
    assert report.tokens is not None
    assert not report.tokens.required
    assert report.tokens.worst_logprob_error > 0.001


@pytest.mark.parametrize("structure", ["pre_norm", "post_norm", "no_bias"])
def test_engines_are_loaded_one_by_one_if_memory_is_short(
    structure: str, exported: Exported, verified: Verify
) -> None:
    report = verified(exported(structure), structure, verify_memory=0)
    assert report.problems == []
    assert report.tokens is not None
    assert report.tokens.worst_logprob_error < 1e-4


def test_canonical_engines_are_verified_too(
    tmp_path: Path, checkpoint: Checkpoints, verified: Verify
) -> None:
    model = str(checkpoint("pre_norm"))
    output = tmp_path / "bundle"
    export(ExportConfig(model=model, output=output, keep_canonical=True, verify=False))
    report = verified(output)
    assert report.problems == []
    assert [check.engine for check in report.engines[9:]] == [
        f"canonical {name}" for name in ("embed", *LAYERS, "head", "candidates")
    ]


def swap_layers(bundle: Path) -> None:
    first, second = (bundle / f"engines/onnxruntime/layer_00{i}.weights" for i in (1, 3))
    first.rename(bundle / "first")
    second.rename(first)
    (bundle / "first").rename(second)


def change_parameter(engine: str, name: str, edit: Callable[[Array], Array]) -> Any:  # noqa: ANN401
    return lambda bundle: edit_parameters(bundle, engine, (name,), lambda values: (edit(values),))


def nudge_one(values: Array) -> Array:
    """Change the last bit of one weight, which is far below any tolerance."""
    values.reshape(-1)[7] = np.nextafter(values.reshape(-1)[7], np.float32(9))
    return values


def change_offset(graph: onnx.GraphProto) -> None:
    """Read position p + 1 instead of p."""
    for tensor in graph.initializer:
        if tensor.data_type == onnx.TensorProto.INT64 and onnx.numpy_helper.to_array(tensor) == 2:
            tensor.CopyFrom(onnx.numpy_helper.from_array(np.array(1, np.int64), tensor.name))


MISTAKES: dict[str, tuple[set[str], Callable[[Path], None]]] = {
    "two layers swapped": ({"layer_001", "layer_003"}, swap_layers),
    "one weight nudged": ({"layer_002"}, change_parameter("layer_002", "fc1.weight", nudge_one)),
    "a bias dropped": ({"layer_004"}, change_parameter("layer_004", "fc2.bias", np.zeros_like)),
    "the last norm dropped": (
        {"head"},
        change_parameter("head", "final_layer_norm.bias", np.zeros_like),
    ),
    "position offset 1": ({"embed"}, lambda bundle: edit_graph(bundle, "embed", change_offset)),
    "attention window": (
        {"layer_005"},
        lambda bundle: edit_graph(bundle, "layer_005", narrow_window),
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_fault_is_located_in_its_engine(
    mistake: str, exported: Exported, verified: Verify, tmp_path: Path
) -> None:
    broken, edit = MISTAKES[mistake]
    bundle = copy_bundle(exported("pre_norm"), tmp_path)
    edit(bundle)
    reseal(bundle)
    report = verified(bundle)
    assert {check.engine for check in report.engines if check.problems} == broken
    with pytest.raises(VerificationError, match="|".join(broken)):
        report.raise_if_failed("bundle")


def test_int8_codes_a_hundredth_too_small_are_found(
    exported: Exported, verified: Verify, tmp_path: Path
) -> None:
    """The error is below the 8-bit noise of a single token, but present in every token."""

    def divide_by_128(graph: onnx.GraphProto) -> None:
        (maximum,) = (tensor for tensor in graph.initializer if tensor.name == "maximum")
        maximum.CopyFrom(onnx.numpy_helper.from_array(np.array(128, np.float32), "maximum"))

    bundle = copy_bundle(exported("pre_norm", quantize="int8"), tmp_path)
    edit_graph(bundle, "layer_002", divide_by_128)
    report = verified(bundle, quantize="int8")
    assert {check.engine for check in report.engines if check.problems} == {"layer_002"}
    assert "median token" in report.problems[0]


def test_a_kernel_that_refuses_its_input_is_reported(
    exported: Exported, verified: Verify, tmp_path: Path
) -> None:
    def beyond_the_table(graph: onnx.GraphProto) -> None:
        for tensor in graph.initializer:
            if tensor.data_type == onnx.TensorProto.INT64:
                tensor.CopyFrom(onnx.numpy_helper.from_array(np.array(3, np.int64), tensor.name))

    bundle = copy_bundle(exported("pre_norm"), tmp_path)
    edit_graph(bundle, "embed", beyond_the_table)
    report = verified(bundle)
    assert "failed to run" in report.problems[0]
    assert "engine embed" in report.problems[0]


def test_nan_is_reported_before_any_other_deviation(
    exported: Exported, verified: Verify, tmp_path: Path
) -> None:
    bundle = copy_bundle(exported("pre_norm"), tmp_path)
    change_parameter("layer_003", "fc1.bias", lambda bias: bias * np.float32("nan"))(bundle)
    change_parameter("layer_001", "fc1.bias", np.zeros_like)(bundle)
    reseal(bundle)
    report = verified(bundle)
    assert report.problems[0].startswith("engine layer_003: hidden_states_out (prompt)")
    again = VerificationReport.model_validate_json(report.model_dump_json())
    assert again.problems == report.problems


def test_a_mistake_in_the_runtime_changes_tokens(
    exported: Exported, verified: Verify, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_rows = StepBuffers.set_rows

    def one_back(
        self: StepBuffers, starts: Sequence[int], counts: Sequence[int], *, is_split: bool
    ) -> None:
        set_rows(self, [max(0, start - 1) for start in starts], counts, is_split=is_split)

    monkeypatch.setattr(StepBuffers, "set_rows", one_back)
    report = verified(exported("pre_norm"))
    assert not [check for check in report.engines if check.problems]
    assert "greedy tokens differ from Hugging Face's" in report.problems[0]


@pytest.mark.parametrize(
    ("requested", "text"),
    [
        ({"dtype": "float16"}, "dtype is 'float32' in the bundle; requested: 'float16'"),
        ({"quantize": "int8"}, "quantize is 'none' in the bundle; requested: 'int8'"),
    ],
)
def test_a_precision_other_than_requested_is_refused(
    requested: dict[str, Any], text: str, exported: Exported, verified: Verify
) -> None:
    with pytest.raises(VerificationError, match=text):
        verified(exported("pre_norm"), **requested)


def test_a_manifest_with_wrong_dtypes_is_refused(
    exported: Exported, verified: Verify, tmp_path: Path
) -> None:
    bundle = copy_bundle(exported("pre_norm"), tmp_path)
    precision = EngineBundle.open(bundle).manifest.precision
    reseal(bundle, precision=precision.model_copy(update={"dtype": "float16"}))
    with pytest.raises(VerificationError, match=r"layer_000.*fc1\.weight is float32"):
        verified(bundle, dtype="float16")


def test_a_bundle_moved_during_verification_is_still_verified(
    exported: Exported, verified: Verify, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = copy_bundle(exported("pre_norm"), tmp_path)
    monkeypatch.setattr(
        "skipdec.exporter.verification.bundle.check_identity",
        lambda *_: bundle.rename(tmp_path / "moved"),
    )
    assert verified(bundle).problems == []


def test_another_model_is_refused(exported: Exported, verified: Verify) -> None:
    with pytest.raises(VerificationError, match="hidden_size is 32 in the bundle; requested: 64"):
        verified(exported("pre_norm"), "untied")
    with pytest.raises(VerificationError) as caught:
        verified(exported("pre_norm"), "llama")
    assert caught.value.problems == ("family is 'opt' in the bundle; requested: 'llama'",)


def test_a_damaged_bundle_is_not_compared(
    exported: Exported, verified: Verify, tmp_path: Path
) -> None:
    bundle = copy_bundle(exported("pre_norm"), tmp_path)
    swap_layers(bundle)
    with pytest.raises(BundleError, match=r"layer_001\.weights"):
        verified(bundle)


def test_a_bundle_that_fails_verification_is_not_published(
    checkpoint: Checkpoints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The verifying process has the correct definition of a parameter, and a quota of processors.

    Only this test starts the real process.
    """
    load = Parameter.load

    def wrong_load(self: Parameter, reader: Any) -> Array:  # noqa: ANN401
        array = load(self, reader)
        return array * np.float32(1.01) if "layers.3.fc1.weight" in self.sources[0] else array

    monkeypatch.setattr(Parameter, "load", wrong_load)
    monkeypatch.setattr(verify, "WORKER", "quota_worker")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    output = tmp_path / "bundle"
    with pytest.raises(VerificationError, match="engine layer_003"):
        export(ExportConfig(model=str(checkpoint("pre_norm")), output=output))
    assert not output.exists()


def request_for(directory: Path, model: str) -> VerificationRequest:
    return VerificationRequest(
        directory=directory, source=CheckpointSource(model=model), precision=PrecisionSpec()
    )


def run_worker_program(request: str, patch: pytest.MonkeyPatch) -> Mock:
    """Run the verifying program in this process; return the mock that receives its lines."""
    lines = Mock(spec=WorkerLines)
    patch.setattr(worker, "WorkerLines", lambda: lines)
    patch.setattr(worker, "use_shared_thread_pool", Mock())
    patch.setattr(sys, "argv", [""])
    patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(request.encode())))
    worker.main()
    return lines


def test_errors_of_the_verifying_process_reach_the_caller(
    exported: Exported, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = request_for(exported("pre_norm"), str(tmp_path))
    ((error,), _) = run_worker_program(request.to_json(), monkeypatch).write_error.call_args
    assert isinstance(error, CheckpointError)
    assert "config.json" in str(error)


def test_a_crash_of_the_verifying_process_quotes_its_last_output(
    exported: Exported, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verify, "WORKER", "skipdec.exporter.no_such_module")
    with pytest.raises(VerificationError, match=r"(?s)ended with code 1.*no_such_module"):
        verify.run_verification(request_for(exported("pre_norm"), "unused"))


def test_an_unused_verifying_process_exits_silently(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_worker_program("", monkeypatch).method_calls == []


def test_a_killed_verifying_process_suggests_a_lack_of_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Worker, "run", Mock(side_effect=WorkerCrashError(-9, "")))
    with pytest.raises(VerificationError, match=r"killed by signal 9.*verify_memory"):
        verify.run_verification(request_for(Path("bundle"), "unused"))


@pytest.mark.parametrize("damaged", [False, True])
def test_verify_without_a_reference_hashes_every_file(
    damaged: bool, exported: Exported, tmp_path: Path
) -> None:
    bundle = copy_bundle(exported("pre_norm"), tmp_path)
    if damaged:
        swap_layers(bundle)
    result = command_line.run("verify", bundle)
    assert result.exit_code == int(damaged)
    assert ("layer_003.weights" in result.stderr) == damaged
