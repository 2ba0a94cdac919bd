"""Test TensorRT's engines on a host device: memory, profiles, addresses and refusals."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import fake_tensorrt
import numpy as np
import pytest
import torch
from backend_tensors import download, upload
from tensorrt_machine import CAPACITY, Compiled, Machine, Tensors, edit_plan

from skipdec.engines.errors import CapacityError, SkipDecError, UsageError
from skipdec.engines.manifest import TensorRole
from skipdec.engines.memory import DeviceTensor
from skipdec.engines.trt.backend import TensorRtRtxBackend

if TYPE_CHECKING:
    from transformers import OPTForCausalLM


def test_all_engines_share_a_scratch_buffer_sized_for_the_largest(
    machine: Machine, compiled: Compiled
) -> None:
    bundle = compiled()
    sessions = [machine.load(bundle, spec.name) for spec in bundle.manifest.all_engines]
    for session in sessions:
        session.bind(machine.tensors(session.spec, rows=2, gathered=2)).run()
    machine.device.synchronize()
    assert len(machine.trt.executions) == len(sessions)
    ((address, size),) = {execution.scratch for execution in machine.trt.executions}
    assert address % 256 == 0
    assert size == 4096  # the scratch memory of a layer


def test_growing_scratch_memory_keeps_earlier_bindings_and_graphs_valid(
    machine: Machine, compiled: Compiled
) -> None:
    bundle = compiled()
    session = machine.load(bundle)
    binding = machine.bind(session, rows=1)
    binding.run()
    graph = machine.device.capture(binding.run)
    edit_plan(bundle, bundle.manifest.head, device_memory=9216)
    machine.load(bundle, "head")
    machine.bind(session, rows=1).run()
    graph.launch()
    machine.device.synchronize()  # fails if the old memory was freed
    first, _, later = machine.trt.executions
    assert (first.scratch[1], later.scratch[1]) == (4096, 9216)

    graph.destroy()
    binding.release()
    gc.collect()
    machine.device.synchronize()
    assert first.scratch[0] in machine.device.freed
    assert later.scratch[0] not in machine.device.freed


def test_an_engine_that_needs_too_much_scratch_memory_leaves_the_others_usable(
    machine: Machine, compiled: Compiled, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = compiled()
    session = machine.load(bundle)
    edit_plan(bundle, bundle.manifest.head, device_memory=9216)
    allocate = machine.device.allocate

    def scarce(nbytes: int) -> int:
        return allocate(nbytes if nbytes < 9216 else 1 << 60)

    with monkeypatch.context() as patch:
        patch.setattr(machine.device, "allocate", scarce)
        with pytest.raises(CapacityError, match="needed at once"):
            machine.load(bundle, "head")
    machine.bind(session, rows=1).run()
    machine.device.synchronize()


@pytest.mark.parametrize(("rows", "step", "profile"), [(1, 1, 0), (8, 1, 0), (1, 2, 1), (4, 12, 1)])
def test_the_shape_of_a_call_chooses_its_profile(
    machine: Machine, compiled: Compiled, rows: int, step: int, profile: int
) -> None:
    machine.bind(machine.load(compiled()), rows, step).run()
    assert machine.trt.executions[0].profile == profile


def test_an_engine_with_one_profile_uses_it(machine: Machine, compiled: Compiled) -> None:
    session = machine.load(compiled(), "candidates")
    session.bind(machine.tensors(session.spec, rows=1, gathered=8)).run()
    assert machine.trt.executions[0].profile == 0


@pytest.mark.parametrize(
    ("rows", "step", "words"),
    [
        (9, 1, r"hidden_states is \(9, 1, 32\); profile 0 takes \(1, 1, 32\) to \(8, 1, 32\)"),
        (4, 13, r"hidden_states is \(4, 13, 32\); profile 1 takes .* to \(4, 12, 32\)"),
        (5, 12, r"max_batch_size, max_prompt_len or kv_buckets"),
    ],
)
def test_shapes_outside_every_profile_are_refused_with_the_ranges(
    machine: Machine, compiled: Compiled, rows: int, step: int, words: str
) -> None:
    session = machine.load(compiled())
    with pytest.raises(UsageError, match=words):
        machine.bind(session, rows, step)


def test_each_bucket_has_a_plan_that_refuses_other_capacities(
    machine: Machine, compiled: Compiled
) -> None:
    bundle = compiled()
    spec = bundle.manifest.layers[0]
    small, large = (machine.backend.load(bundle, spec, bucket) for bucket in spec.buckets)
    machine.bind(small, rows=1)
    with pytest.raises(UsageError, match=r"past_key is .* takes .*32, 8\)"):
        machine.bind(large, rows=1)


def test_outputs_whose_rows_differ_from_the_inputs_are_refused(
    machine: Machine, compiled: Compiled
) -> None:
    session = machine.load(compiled())
    tensors = machine.tensors(session.spec, rows=2)
    tensors[TensorRole.HIDDEN_STATES_OUT] = tensors[TensorRole.HIDDEN_STATES_OUT][:1]
    with pytest.raises(UsageError, match="hidden_states_out has B = 1, but hidden_states has 2"):
        session.bind(tensors)


def test_past_and_present_must_be_one_tensor(machine: Machine, compiled: Compiled) -> None:
    session = machine.load(compiled())
    tensors = machine.tensors(session.spec, rows=1)
    tensors[TensorRole.PRESENT_KEY] = machine.tensors(session.spec, rows=1)[TensorRole.PAST_KEY]
    with pytest.raises(UsageError, match="present_key is not where past_key is"):
        session.bind(tensors)


def test_a_refused_run_quotes_tensorrts_error(machine: Machine, compiled: Compiled) -> None:
    binding = machine.bind(machine.load(compiled()), rows=1)
    for words in ("no kernel image", "out of tea"):  # each error is reported once
        machine.trt.refusal = words
        expected = f"engine layer_000 | TensorRT failed to enqueue it: INVALID_ARGUMENT: {words}"
        with pytest.raises(SkipDecError) as caught:
            binding.run()
        assert str(caught.value) == expected


def test_a_flood_of_errors_is_truncated(machine: Machine) -> None:
    recorder = cast(Any, machine.backend.recorder)
    for number in range(100):
        recorder.report_error(fake_tensorrt.ErrorCode.INTERNAL_ERROR, f"error {number}")
    assert recorder.has_overflowed()
    assert recorder.num_errors() == 32
    text = recorder.take()
    assert "error 0" in text
    assert text.endswith("and more")
    assert recorder.take() == "TensorRT gave no reason"


def test_each_binding_keeps_its_own_addresses(machine: Machine, compiled: Compiled) -> None:
    session = machine.load(compiled())
    there = machine.tensors(session.spec, rows=2)
    back = there | {
        TensorRole.HIDDEN_STATES: there[TensorRole.HIDDEN_STATES_OUT],
        TensorRole.HIDDEN_STATES_OUT: there[TensorRole.HIDDEN_STATES],
    }
    ping, pong = session.bind(there), session.bind(back)
    for binding in (ping, pong, ping, pong):
        binding.run()
    machine.device.synchronize()
    addresses = [execution.addresses for execution in machine.trt.executions]
    for tensors, seen in zip((there, back, there, back), addresses, strict=True):
        assert seen == {
            role.value: cast(DeviceTensor, tensor).address for role, tensor in tensors.items()
        }


def test_contexts_are_reused_by_the_next_binding_of_their_profile(
    machine: Machine, compiled: Compiled
) -> None:
    session = machine.load(compiled())
    for rows in (1, 2, 3):  # each is released before the device executes it
        binding = machine.bind(session, rows)
        binding.run()
        binding.release()
    assert len(machine.trt.settings) == 1
    machine.bind(session, rows=1, step=3).release()
    assert len(machine.trt.settings) == 2
    kept = [machine.bind(session, rows=1) for _ in range(2)]
    assert len(machine.trt.settings) == 3
    machine.device.synchronize()
    assert [execution.shapes["hidden_states"][0] for execution in machine.trt.executions] == [
        1,
        2,
        3,
    ]
    for binding in kept:
        binding.release()
        binding.release()  # a second release is harmless
    machine.bind(session, rows=1)
    assert len(machine.trt.settings) == 3


def test_rtx_compiles_decode_kernels_eagerly(compiled: Compiled) -> None:
    machine = Machine(backend=TensorRtRtxBackend)
    session = machine.load(compiled(target="tensorrt-rtx"))
    machine.bind(session, rows=1)
    machine.bind(session, rows=1, step=4)
    chosen = [
        settings.dynamic_shapes_kernel_specialization_strategy.name
        for settings in machine.trt.settings
    ]
    assert chosen == ["EAGER", "LAZY"]


def test_a_prompt_through_fake_plans_gives_the_models_logits(
    machine: Machine, compiled: Compiled, reference_model: Callable[[str], OPTForCausalLM]
) -> None:
    role, bundle = TensorRole, compiled()
    prompt = np.array([[5, 17, 99]], np.int64)
    arrays = {
        role.INPUT_IDS: prompt,
        role.POSITION_IDS: np.arange(3, dtype=np.int64)[None],
        role.ATTENTION_MASK: np.tri(3, CAPACITY, dtype=bool)[None, None],
        role.ROW_POSITIONS: np.array([2], np.int64),
    }
    state: Tensors = {name: upload(machine.backend, array) for name, array in arrays.items()}
    for spec in bundle.manifest.all_engines:
        given = {tensor.role: state[tensor.role] for tensor in spec.inputs if tensor.role in state}
        tensors = machine.tensors(spec, rows=1, step=3) | given
        machine.load(bundle, spec.name).bind(tensors).run()
        for output in spec.outputs:
            becomes_input = output.role is role.HIDDEN_STATES_OUT
            state[role.HIDDEN_STATES if becomes_input else output.role] = tensors[output.role]
    logits = download(machine.backend, state[role.LOGITS])
    expected = reference_model("pre_norm")(torch.from_numpy(prompt)).logits[:, -1].detach().numpy()
    np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-4)
    most_likely = download(machine.backend, state[role.TOP_TOKEN_IDS])
    np.testing.assert_array_equal(most_likely[0, :9], np.argsort(-expected[0])[:9])
