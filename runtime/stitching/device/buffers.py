"""Device memory that is kept between calls, and inputs that are copied to it once per call."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from ....engines.backends.device import DeviceEvent, DeviceMemory
from ....engines.manifest import DType, EngineSpec, TensorRole
from ....engines.memory import ITEM_BYTES, Array, DeviceBuffer, DeviceTensor
from ...tokens.logits import CandidateLogits, HostLogits, KeptLogits, StepLogits

_ALIGNMENT = 256  # as in CUDA's own allocations

Name = TypeVar("Name", bound=Hashable)


@dataclass(frozen=True)
class Field:
    """Dtype and shape of one tensor."""

    dtype: DType
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor, without padding."""
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]


class Staging(Generic[Name]):
    """Page-locked host memory and device memory of the same size and layout.

    ``lay_out`` places tensors in them; the caller reads or writes the ``host`` views and binds the
    ``device`` views. Addresses change only if a layout needs more memory than any before.

    With two ``copies`` of the host memory, `turn` switches between them, so that the host can use
    one while a transfer from or to the other is still enqueued.
    """

    def __init__(self, memory: DeviceMemory, *, copies: int = 1) -> None:
        self._memory = memory
        self._pinned: list[NDArray[np.uint8]] = [np.empty(0, np.uint8)] * copies
        self._buffer = DeviceBuffer(0, 0)
        self._used = 0
        self._hosts: list[dict[Name, Array]] = [{}] * copies
        self._turn = 0
        self.device: dict[Name, DeviceTensor] = {}

    @property
    def host(self) -> dict[Name, Array]:
        """The views of the current host memory by name."""
        return self._hosts[self._turn]

    def turn(self) -> None:
        """Switch to the next copy of the host memory."""
        self._turn = (self._turn + 1) % len(self._pinned)

    def lay_out(self, fields: Mapping[Name, Field]) -> None:
        """Place ``fields`` one after the other; earlier contents are lost."""
        offsets: dict[Name, int] = {}
        size = 0
        for name, tensor in fields.items():
            offsets[name] = size
            size += -(-tensor.nbytes // _ALIGNMENT) * _ALIGNMENT
        if size > self._buffer.nbytes:
            self._pinned = [self._memory.device.pinned(size) for _ in self._pinned]
            self._buffer = self._memory.allocate(size)
        self._used = size
        self._hosts = [
            {
                name: pinned[offsets[name] : offsets[name] + tensor.nbytes]
                .view(tensor.dtype)
                .reshape(tensor.shape)
                for name, tensor in fields.items()
            }
            for pinned in self._pinned
        ]
        self.device = {
            name: DeviceTensor(
                self._buffer.address + offsets[name], tensor.shape, tensor.dtype, self._buffer
            )
            for name, tensor in fields.items()
        }

    def upload(self) -> None:
        """Enqueue the copy to the device; ``host`` must not change until it has run."""
        source = self._pinned[self._turn][: self._used]
        self._memory.device.copy_to_device(self._buffer.address, source)

    def download(self) -> None:
        """Enqueue the copy to the host; ``host`` holds the data after ``synchronize``."""
        target = self._pinned[self._turn][: self._used]
        self._memory.device.copy_to_host(target, self._buffer.address)


@dataclass(frozen=True)
class ComingLogits:
    """The result of an enqueued step, valid until the next step but one begins."""

    done: DeviceEvent
    logits: StepLogits

    def wait(self) -> StepLogits:
        """Wait for the step; later ones may go on."""
        self.done.wait()
        return self.logits


class StepResults(ABC):
    """The memory for outputs of a step's last engines; ``copied`` outputs are copied to the host.

    The host has two copies, so that it reads the results of one step while the next one runs.
    """

    def __init__(self, memory: DeviceMemory, copied: Mapping[TensorRole, Field]) -> None:
        self._copied: Staging[TensorRole] = Staging(memory, copies=2)
        self._copied.lay_out(copied)
        self._events = [memory.device.event() for _ in range(2)]
        self.num_downloads = 0

    @abstractmethod
    def tensors(self, tokens: int) -> dict[TensorRole, DeviceTensor]:
        """Return the outputs of these engines for the first ``tokens`` tokens, by role."""

    @abstractmethod
    def logits(self, tokens: int, host: Mapping[TensorRole, Array]) -> StepLogits:
        """Return the logits of the first ``tokens`` tokens; ``host`` has a step's copies."""

    def download(self, tokens: int) -> ComingLogits:
        """Enqueue the copy of the ``copied`` outputs to the host."""
        self._copied.turn()
        self._copied.download()
        self.num_downloads += 1
        event = self._events[self.num_downloads % 2]
        event.record()
        return ComingLogits(event, self.logits(tokens, self._copied.host))


class CandidateResults(StepResults):
    """Logits and candidates of up to ``max_tokens`` tokens; only candidates are always copied."""

    def __init__(
        self, memory: DeviceMemory, head: EngineSpec, candidates: EngineSpec, max_tokens: int
    ) -> None:
        role = TensorRole
        self._device = memory.device
        self._vocab_size = int(head.tensor(role.LOGITS).shape[-1])
        num_candidates = int(candidates.tensor(role.TOP_LOGITS).shape[-1])
        self._logits = memory.empty((max_tokens, self._vocab_size), "float32")
        copied = {
            role.TOP_LOGITS: Field("float32", (max_tokens, num_candidates)),
            role.TOP_TOKEN_IDS: Field("int64", (max_tokens, num_candidates)),
        }
        super().__init__(memory, copied)
        self._fetched = memory.device.pinned(4 * self._vocab_size).view(np.float32)  # [V]

    @override
    def tensors(self, tokens: int) -> dict[TensorRole, DeviceTensor]:
        chosen = {role: tensor[:tokens] for role, tensor in self._copied.device.items()}
        return {TensorRole.LOGITS: self._logits[:tokens]} | chosen

    def best_token_address(self, token: int) -> int:
        """Return the address of the id, int64, of the most probable token after a step's token."""
        best = self._copied.device[TensorRole.TOP_TOKEN_IDS]  # [max_tokens, K]
        return best.address + token * best.shape[1] * ITEM_BYTES[best.dtype]

    @override
    def logits(self, tokens: int, host: Mapping[TensorRole, Array]) -> CandidateLogits:
        top_logits = host[TensorRole.TOP_LOGITS][:tokens]
        top_token_ids = host[TensorRole.TOP_TOKEN_IDS][:tokens]
        fetch = partial(self._fetch, self.num_downloads, top_logits, top_token_ids)
        return CandidateLogits(top_logits, top_token_ids, self._vocab_size, fetch)

    def _fetch(self, download: int, top_logits: Array, top_token_ids: Array, token: int) -> Array:
        """Return all logits [V] of one token of a step; the next fetch reuses the memory.

        If a later step has begun, all logits but the candidates are overwritten and returned as
        -inf. That is allowed only if candidates decide unless they are not finite.
        """
        if download != self.num_downloads:
            known = np.full(self._vocab_size, -np.inf, np.float32)
            known[top_token_ids[token]] = top_logits[token]
            return known
        self._device.copy_to_host(self._fetched, self._logits[token : token + 1].address)
        self._device.synchronize()
        return self._fetched


class NarrowResults(StepResults):
    """Logits of a narrow head for up to ``max_tokens`` tokens, all of them copied.

    ``token_ids``: the tokens that the head scores, or None for the vocabulary's first tokens. The
    engine for candidates can't be used, because it takes logits of the whole vocabulary.
    """

    def __init__(
        self,
        memory: DeviceMemory,
        head: EngineSpec,
        max_tokens: int,
        token_ids: Array | None = None,
    ) -> None:
        self._token_ids = token_ids
        width = int(head.tensor(TensorRole.LOGITS).shape[-1])
        super().__init__(memory, {TensorRole.LOGITS: Field("float32", (max_tokens, width))})

    @override
    def tensors(self, tokens: int) -> dict[TensorRole, DeviceTensor]:
        return {TensorRole.LOGITS: self._copied.device[TensorRole.LOGITS][:tokens]}

    @override
    def logits(self, tokens: int, host: Mapping[TensorRole, Array]) -> HostLogits:
        found = host[TensorRole.LOGITS][:tokens]
        return HostLogits(found) if self._token_ids is None else KeptLogits(found, self._token_ids)


class PromptBuffers:
    """Hidden states and logits of prompts, in memory that grows with the longest call."""

    def __init__(self, memory: DeviceMemory, embed: EngineSpec, head: EngineSpec) -> None:
        hidden = embed.tensor(TensorRole.HIDDEN_STATES_OUT)
        self._memory = memory
        self._hidden_size = int(hidden.shape[-1])
        self._dtype: DType = hidden.dtype
        self._vocab_size = int(head.tensor(TensorRole.LOGITS).shape[-1])
        self._hidden: list[DeviceTensor] = []
        self._logits: Staging[TensorRole] = Staging(memory)

    def hidden_states(self, rows: int, length: int) -> tuple[DeviceTensor, DeviceTensor]:
        """Return two buffers [rows, length, E] for a prefill call, valid until the next one."""
        shape = (rows, length, self._hidden_size)
        nbytes = math.prod(shape) * ITEM_BYTES[self._dtype]
        if not self._hidden or nbytes > self._hidden[0].buffer.nbytes:
            self._hidden.clear()  # frees it before more is allocated
            self._hidden += [self._memory.empty(shape, self._dtype) for _ in range(2)]
        first, second = (
            self._memory.tensor(tensor.buffer, shape, self._dtype) for tensor in self._hidden
        )
        return first, second

    def logits(self, rows: int) -> Staging[TensorRole]:
        """Return memory for logits float32 [rows, V] of a prefill call, on device and host."""
        self._logits.lay_out({TensorRole.LOGITS: Field("float32", (rows, self._vocab_size))})
        return self._logits


class DeviceInputs(Staging[TensorRole]):
    """The integer inputs of a call over rows of tokens, uploaded in one copy."""

    def send(
        self,
        tokens: Sequence[Sequence[int]],
        start: int,
        gathered: Sequence[int],
        capacity: int | None,
    ) -> None:
        """Enqueue the upload of rows of tokens, whose first ones are at position ``start``.

        Shorter rows are padded with token 0, whose results are never read. ``gathered``: the tokens
        that the head reads, as indices into the padded rows. ``capacity``: T of the attention mask,
        each query row of which has a True; None for engines without one.
        """
        role, rows, length = TensorRole, len(tokens), max(map(len, tokens))
        fields = {
            role.INPUT_IDS: Field("int64", (rows, length)),
            role.POSITION_IDS: Field("int64", (rows, length)),
            role.WRITE_INDICES: Field("int64", (rows,)),
            role.SEQLENS_K: Field("int32", (rows,)),
            role.ROW_POSITIONS: Field("int64", (len(gathered),)),
        }
        if capacity is not None:
            fields[role.ATTENTION_MASK] = Field("bool", (rows, 1, length, capacity))
        self.lay_out(fields)
        host = self.host
        host[role.INPUT_IDS][...] = 0
        for index, row in enumerate(tokens):
            host[role.INPUT_IDS][index, : len(row)] = row
        positions = host[role.POSITION_IDS]  # [rows, length]
        positions[...] = np.arange(start, start + length)
        host[role.WRITE_INDICES][...] = start
        host[role.SEQLENS_K][...] = [start + len(row) - 1 for row in tokens]
        host[role.ROW_POSITIONS][...] = gathered
        if capacity is not None:
            mask = host[role.ATTENTION_MASK]  # [rows, 1, length, T]
            np.less_equal(np.arange(capacity), positions[:, None, :, None], out=mask)
        self.upload()
