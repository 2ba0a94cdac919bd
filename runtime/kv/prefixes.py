"""The prefix cache: keys and values of the first tokens of prompts, kept for later prompts."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from ...engines.constants import integer
from ...engines.errors import CapacityError
from ...engines.memory import Array, Buffer, Tensor
from .buffers import BufferPool, KVLayout, pooled_size

# Prefixes are kept and found in whole blocks of this many tokens.
BLOCK_TOKENS = integer("prefix_block_tokens")


@dataclass(eq=False)
class _Block:
    """The tokens of a prompt after those of ``parent``, with their keys and values in all layers.

    The parent of a prompt's first block is its owner.
    """

    parent: _Block | str
    tokens: tuple[int, ...]
    memory: Buffer
    values: Array  # [L, 2, N, BLOCK_TOKENS, W], keys and values
    children: int = 0  # including those that are being recorded: they need their parent


class PrefixCache:
    """Keeps keys and values of prompts' prefixes in all layers; evicts the least recently used.

    If every layer runs the whole prompt, a position's keys and values depend only on the tokens up
    to it. So a prompt with a cached prefix reuses them and runs only the rest.

    >>> blocks = cache.find([*system, *question])  # after a prompt that began with ``system``
    >>> len(blocks) * BLOCK_TOKENS
    64

    A prompt finds only the prefixes of its ``owner``. Clients that must not infer from latency what
    others sent have owners of their own.

    ``pool`` owns the memory; `set_limit` bounds how much of it is kept. Host memory only.
    """

    def __init__(self, pool: BufferPool, layout: KVLayout, num_layers: int) -> None:
        self._pool = pool
        self._layout = layout
        self._shape = (num_layers, 2, layout.num_heads, BLOCK_TOKENS, layout.width)
        self._block_bytes = pooled_size(2 * num_layers * layout.nbytes(1, BLOCK_TOKENS))
        self._blocks: OrderedDict[tuple[_Block | str, tuple[int, ...]], _Block] = OrderedDict()
        self._limit = 0
        self._num_held = 0  # blocks, including those of recordings

    @property
    def nbytes(self) -> int:
        """Bytes of the pool that the cache holds."""
        return self._num_held * self._block_bytes

    def set_limit(self, nbytes: int) -> None:
        """Keep at most ``nbytes`` bytes from now on; evict blocks beyond that."""
        self._limit = nbytes
        self._make_room(0)

    def find(self, tokens: Sequence[int], owner: str = "") -> list[_Block]:
        """Return the longest kept prefix of a prompt, without its last token, which must run."""
        found: list[_Block] = []
        parent: _Block | str = owner
        for start in range(0, len(tokens) - BLOCK_TOKENS, BLOCK_TOKENS):
            block = self._blocks.get((parent, tuple(tokens[start : start + BLOCK_TOKENS])))
            if block is None:
                break
            found.append(block)
            parent = block
        for block in reversed(found):  # a block is used as recently as the blocks after it
            self._blocks.move_to_end((block.parent, block.tokens))
        return found

    def record(self, tokens: Sequence[int], owner: str = "") -> Recording:
        """Begin to record the prompt's new whole blocks, as far as there is room."""
        known = self.find([*tokens, 0], owner)
        parent: _Block | str = known[-1] if known else owner
        new: list[_Block] = []
        for start in range(len(known) * BLOCK_TOKENS, len(tokens) - BLOCK_TOKENS + 1, BLOCK_TOKENS):
            if not self._make_room(self._block_bytes, spare=known):
                break
            try:
                memory = self._pool.acquire(self._block_bytes, "prefix")
            except CapacityError:  # out of memory; rows can do without the cache
                break
            self._num_held += 1
            values = cast(Array, self._pool.memory.tensor(memory, self._shape, self._layout.dtype))
            block_tokens = tuple(tokens[start : start + BLOCK_TOKENS])
            if isinstance(parent, _Block):
                parent.children += 1
            parent = block = _Block(parent, block_tokens, memory, values)
            new.append(block)
        return Recording(self, len(known) * BLOCK_TOKENS, new)

    def keep(self, blocks: Sequence[_Block]) -> None:
        """Add a recording's blocks; free those that another recording has added meanwhile."""
        is_known = False
        for block in blocks:
            key = block.parent, block.tokens
            is_known |= key in self._blocks
            if is_known:
                self._free(block)
                continue
            self._blocks[key] = block

    def drop(self, blocks: Sequence[_Block]) -> None:
        """Free blocks of an abandoned recording."""
        for block in blocks:
            self._free(block)

    def clear(self) -> None:
        """Free all blocks."""
        for block in self._blocks.values():
            self._free(block)
        self._blocks.clear()

    def _make_room(self, nbytes: int, spare: Sequence[_Block] = ()) -> bool:
        """Evict least recently used blocks, except ``spare``, until ``nbytes`` more fit."""
        while self.nbytes + nbytes > self._limit:
            oldest = next(
                (
                    key
                    for key, block in self._blocks.items()
                    if not block.children and block not in spare
                ),
                None,
            )
            if oldest is None:
                return False
            self._free(self._blocks.pop(oldest))
        return True

    def _free(self, block: _Block) -> None:
        self._pool.release(block.memory, "prefix")
        self._num_held -= 1
        if isinstance(block.parent, _Block):
            block.parent.children -= 1


class Recording:
    """The new blocks of one prompt, filled layer by layer while it runs."""

    def __init__(self, cache: PrefixCache, start: int, blocks: Sequence[_Block]) -> None:
        self._cache = cache
        self._start = start
        self._blocks = blocks

    def copy(self, layer: int, written: tuple[Tensor, Tensor], row: int) -> None:
        """Copy the prompt's ``row`` of what ``layer`` wrote: key and value [rows, N, T, W]."""
        key, value = (cast(Array, tensor)[row] for tensor in written)  # [N, T, W]
        for index, block in enumerate(self._blocks):
            start = self._start + index * BLOCK_TOKENS
            block.values[layer, 0] = key[:, start : start + BLOCK_TOKENS]
            block.values[layer, 1] = value[:, start : start + BLOCK_TOKENS]

    def commit(self) -> None:
        """Add the blocks to the cache once all layers are copied."""
        self._cache.keep(self._blocks)
        self._blocks = ()

    def give_up(self) -> None:
        """Free the blocks if the prompt did not finish; no effect after `commit`."""
        self._cache.drop(self._blocks)
        self._blocks = ()


def restore(blocks: Sequence[_Block], layer: int, target: tuple[Tensor, Tensor]) -> None:
    """Write the keys and values of ``blocks`` in ``layer`` to one row's caches [1, N, T, W]."""
    key, value = (cast(Array, tensor)[0] for tensor in target)
    for index, block in enumerate(blocks):
        start = index * BLOCK_TOKENS
        key[:, start : start + BLOCK_TOKENS] = block.values[layer, 0]
        value[:, start : start + BLOCK_TOKENS] = block.values[layer, 1]
