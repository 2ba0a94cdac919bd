"""A common interface for calling an engine and its reference torch module."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

import numpy as np
import torch
from torch import nn
from typing_extensions import override

from ...engines.backends.session import EngineSession
from ...engines.manifest import PAST_OF, EngineSpec, TensorRole
from ...engines.memory import Array, numpy_dtype
from ...runtime.stitching.protocol import run_once
from ..architecture.modules import call_by_role
from .caches import position_inputs


class EngineCalls(ABC):
    """Runs one engine, or its reference, on numpy arrays; shapes as in ``TensorRole``."""

    @abstractmethod
    def run(self, inputs: Mapping[TensorRole, Array]) -> list[Array]:
        """Run on inputs of any size; return the outputs in order.

        Roles that the engine doesn't have are ignored.
        """

    def embed(self, input_ids: Array, position_ids: Array) -> Array:
        """Map int64 input_ids and position_ids [B, S] to hidden states [B, S, E]."""
        role = TensorRole
        return self.run({role.INPUT_IDS: input_ids, role.POSITION_IDS: position_ids})[0]

    def layer(self, hidden_states: Array, key: Array, value: Array, starts: Array) -> Array:
        """Run a layer on hidden states [B, S, E]; row b starts at position ``starts[b]``.

        ``starts`` is int64 [B]. Key and value [B, N, T, W] contain the past and are updated in
        place. With S > 1, all starts are 0, except for engines of skipdec's kernels. Prompts are
        padded on the right; outputs at padding are meaningless. Returns [B, S, E].
        """
        output, key[...], value[...] = self.run(
            {
                TensorRole.HIDDEN_STATES: hidden_states,
                TensorRole.PAST_KEY: key,
                TensorRole.PAST_VALUE: value,
                **position_inputs(starts, hidden_states.shape[1], key.shape[2]),
            }
        )
        return output

    def head(self, hidden_states: Array, row_positions: Array) -> Array:
        """Map [B, S, E] and int64 [R] into B*S to float32 logits [R, V]."""
        role = TensorRole
        return self.run({role.HIDDEN_STATES: hidden_states, role.ROW_POSITIONS: row_positions})[0]

    def joined(self, states: Array) -> Array:
        """Map J concatenated states [B, S, J · E] to one [B, S, E]."""
        return self.run({TensorRole.STATES: states})[0]

    def candidates(self, logits: Array) -> tuple[Array, Array]:
        """Return the K largest of float32 logits [R, V] per row, [R, K], and their int64 ids."""
        top_logits, top_token_ids = self.run({TensorRole.LOGITS: logits})
        return top_logits, top_token_ids


class ModuleCalls(EngineCalls):
    """An engine's module with its weights, in float32 throughout."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module

    @override
    def run(self, inputs: Mapping[TensorRole, Array]) -> list[Array]:
        tensors = {role: _float32_tensor(array) for role, array in inputs.items()}
        with torch.inference_mode():
            return [tensor.numpy() for tensor in call_by_role(self._module, tensors)]


class SessionCalls(EngineCalls):
    """An engine bound as in the runtime: caches are updated in place, tensors named by role."""

    def __init__(self, session: EngineSession) -> None:
        self._session = session

    @override
    def run(self, inputs: Mapping[TensorRole, Array]) -> list[Array]:
        spec = self._session.spec
        tensors = dict(inputs)
        tensors |= {role: inputs[past] for role, past in PAST_OF.items() if past in inputs}
        shapes = output_shapes(spec, inputs)
        for tensor in spec.outputs:
            if tensor.role not in tensors:
                tensors[tensor.role] = np.empty(shapes[tensor.role], numpy_dtype(tensor.dtype))
        run_once(self._session, tensors)
        return [tensors[tensor.role] for tensor in spec.outputs]


def _float32_tensor(array: Array) -> torch.Tensor:
    is_float = array.dtype.kind not in "biu"  # numpy doesn't classify bfloat16 as float
    return torch.from_numpy(array.astype(np.float32, copy=False) if is_float else array)


def output_shapes(
    spec: EngineSpec, inputs: Mapping[TensorRole, Array]
) -> dict[TensorRole, tuple[int, ...]]:
    """Return the shape of each output; ``inputs`` determine the symbols B, S, T and R."""
    sizes: dict[int | str, int] = {}
    for tensor in spec.inputs:
        if tensor.role in inputs:
            sizes.update(zip(tensor.shape, inputs[tensor.role].shape, strict=True))
    return {
        tensor.role: tuple(size if isinstance(size, int) else sizes[size] for size in tensor.shape)
        for tensor in spec.outputs
    }
