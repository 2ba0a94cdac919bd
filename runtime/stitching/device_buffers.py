"""The device memory that steps and prompts of any batch write to, kept from call to call."""

from __future__ import annotations

import math

import numpy as np

from ..engines.backends.device import DeviceMemory
from ..engines.manifest import DType, EngineSpec, TensorRole
from ..engines.memory import ITEM_BYTES, Array, DeviceTensor
from .row_logits import CandidateLogits
from .staging import Field, Staging


class DeviceBuffers:
    """Two buffers of hidden states, logits, candidates and the candidates' twins on the host.

    Sized for ``max_rows`` rows of one token; prompts have buffers of their own, which grow.
    """

    def __init__(
        self,
        memory: DeviceMemory,
        embed: EngineSpec,
        head: EngineSpec,
        candidates: EngineSpec,
        max_rows: int,
    ) -> None:
        role = TensorRole
        hidden = embed.tensor(role.HIDDEN_STATES_OUT)
        self._memory = memory
        self._hidden_size = int(hidden.shape[-1])
        self._dtype: DType = hidden.dtype
        self._vocab_size = int(head.tensor(role.LOGITS).shape[-1])
        num_candidates = int(candidates.tensor(role.TOP_LOGITS).shape[-1])
        shape = (max_rows, 1, self._hidden_size)
        self._hidden = [memory.empty(shape, hidden.dtype) for _ in range(2)]  # [max_rows, 1, E]
        self._logits = memory.empty((max_rows, self._vocab_size), "float32")
        self._chosen = Staging(memory)
        self._chosen.lay_out(
            {
                role.TOP_LOGITS: Field("float32", (max_rows, num_candidates)),
                role.TOP_TOKEN_IDS: Field("int64", (max_rows, num_candidates)),
            }
        )
        self._fetched = memory.device.pinned(4 * self._vocab_size).view(np.float32)  # [V]
        self._prompt_hidden: list[DeviceTensor] = []
        self._prompt_logits = Staging(memory)

    def hidden_states(self, rows: int) -> tuple[DeviceTensor, DeviceTensor]:
        """The two buffers of a step, [rows, 1, E] each."""
        first, second = (tensor[:rows] for tensor in self._hidden)
        return first, second

    def results(self, rows: int) -> dict[TensorRole, DeviceTensor]:
        """What head and candidates write, by role, for the first ``rows`` rows."""
        chosen = {role: tensor[:rows] for role, tensor in self._chosen.device.items()}
        return {TensorRole.LOGITS: self._logits[:rows]} | chosen

    def download(self) -> None:
        """Enqueue the copy of all candidates to the host."""
        self._chosen.download()

    def candidate_logits(self, rows: int) -> CandidateLogits:
        """The last step's result, once the device is synchronised."""
        return CandidateLogits(
            self._chosen.host[TensorRole.TOP_LOGITS][:rows],
            self._chosen.host[TensorRole.TOP_TOKEN_IDS][:rows],
            self._vocab_size,
            self._fetch,
        )

    def prompt_hidden_states(self, rows: int, length: int) -> tuple[DeviceTensor, DeviceTensor]:
        """Two buffers [rows, length, E] for a prefill call, valid until the next one."""
        shape = (rows, length, self._hidden_size)
        nbytes = math.prod(shape) * ITEM_BYTES[self._dtype]
        if not self._prompt_hidden or nbytes > self._prompt_hidden[0].buffer.nbytes:
            self._prompt_hidden.clear()  # freed before more is taken
            self._prompt_hidden += [self._memory.empty(shape, self._dtype) for _ in range(2)]
        first, second = (
            self._memory.tensor(tensor.buffer, shape, self._dtype) for tensor in self._prompt_hidden
        )
        return first, second

    def prompt_logits(self, rows: int) -> Staging:
        """Room for logits float32 [rows, V] of a prefill call, on both sides."""
        self._prompt_logits.lay_out({TensorRole.LOGITS: Field("float32", (rows, self._vocab_size))})
        return self._prompt_logits

    def _fetch(self, row: int) -> Array:
        """All logits [V] of one row of the last step, in memory that the next fetch reuses."""
        device = self._memory.device
        device.copy_to_host(self._fetched, self._logits[row : row + 1].address)
        device.synchronize()
        return self._fetched
