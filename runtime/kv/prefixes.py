"""Beginnings of prompts whose keys and values are kept, so that they are computed once."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from ...engines.memory import Array, Buffer, Tensor
from .layout import KVLayout
from .pool import BufferPool, pooled_size

BLOCK_TOKENS = 16  # a beginning is kept, and found, in whole blocks of as many tokens


@dataclass(eq=False)
class _Block:
    """Some tokens of a prompt behind those of ``parent``, and what all layers made of them.

    The first block of a prompt has its owner as parent.
    """

    parent: _Block | str
    tokens: tuple[int, ...]
    memory: Buffer
    values: Array  # [L, 2, N, BLOCK_TOKENS, W], keys and values
    children: int = 0


class PrefixCache:
    """Keys and values of prompts' beginnings, in all layers; the least recently used go first.

    A position's keys and values depend on the tokens up to it alone, where every layer runs on the
    whole prompt. So a prompt that begins like one before takes them over and runs the rest.

    >>> blocks = cache.find([*system, *question])  # after a prompt that began with ``system``
    >>> len(blocks) * BLOCK_TOKENS
    64

    A prompt finds the beginnings of its ``owner`` alone: whoever may not learn, from how long its
    own prompts take, what others sent is an owner of its own.

    ``pool`` owns the memory; `limit` says how much of it may be kept. Host memory only.
    """

    def __init__(self, pool: BufferPool, layout: KVLayout, num_layers: int) -> None:
        self._pool = pool
        self._layout = layout
        self._shape = (num_layers, 2, layout.num_heads, BLOCK_TOKENS, layout.width)
        self._block_bytes = pooled_size(2 * num_layers * layout.nbytes(1, BLOCK_TOKENS))
        self._blocks: OrderedDict[tuple[_Block | str, tuple[int, ...]], _Block] = OrderedDict()
        self._limit = 0
        self._num_held = 0  # blocks, those of recordings included

    @property
    def nbytes(self) -> int:
        """Bytes of the pool that are kept."""
        return self._num_held * self._block_bytes

    def set_limit(self, nbytes: int) -> None:
        """Keep at most so many bytes from now on, dropping what is beyond."""
        self._limit = nbytes
        self._make_room(0)

    def find(self, tokens: Sequence[int], owner: str = "") -> list[_Block]:
        """Return the longest kept beginning of a prompt but its last token, which must run."""
        found: list[_Block] = []
        parent: _Block | str = owner
        for start in range(0, len(tokens) - BLOCK_TOKENS, BLOCK_TOKENS):
            key = parent, tuple(tokens[start : start + BLOCK_TOKENS])
            if key not in self._blocks:
                break
            self._blocks.move_to_end(key)
            parent = block = self._blocks[key]
            found.append(block)
        for block in reversed(found):  # a block is used as recently as what lies behind it
            self._blocks.move_to_end((block.parent, block.tokens))
        return found

    def record(self, tokens: Sequence[int], owner: str = "") -> Recording:
        """Begin to keep the whole blocks of a prompt that are not kept, as far as there is room."""
        known = self.find([*tokens, 0], owner)
        parent: _Block | str = known[-1] if known else owner
        new: list[_Block] = []
        for start in range(len(known) * BLOCK_TOKENS, len(tokens) - BLOCK_TOKENS + 1, BLOCK_TOKENS):
            if not self._make_room(self._block_bytes, spare=known):
                break
            memory = self._pool.acquire(self._block_bytes, "prefix")
            self._num_held += 1
            values = cast(Array, self._pool.memory.tensor(memory, self._shape, self._layout.dtype))
            block_tokens = tuple(tokens[start : start + BLOCK_TOKENS])
            parent = block = _Block(parent, block_tokens, memory, values)
            new.append(block)
        return Recording(self, len(known) * BLOCK_TOKENS, new)

    def keep(self, blocks: Sequence[_Block]) -> None:
        """Let blocks of a recording be found; those known meanwhile are freed."""
        is_known = False
        for block in blocks:
            key = block.parent, block.tokens
            is_known |= key in self._blocks
            if is_known:
                self._free(block)
                continue
            self._blocks[key] = block
            if isinstance(block.parent, _Block):
                block.parent.children += 1

    def drop(self, blocks: Sequence[_Block]) -> None:
        """Free blocks of a recording that was given up."""
        for block in blocks:
            self._free(block)

    def clear(self) -> None:
        """Free all."""
        for block in self._blocks.values():
            self._free(block)
        self._blocks.clear()

    def _make_room(self, nbytes: int, spare: Sequence[_Block] = ()) -> bool:
        """Drop what was used least recently, but ``spare``, until ``nbytes`` more are allowed."""
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
            block = self._blocks.pop(oldest)
            if isinstance(block.parent, _Block):
                block.parent.children -= 1
            self._free(block)
        return True

    def _free(self, block: _Block) -> None:
        self._pool.release(block.memory, "prefix")
        self._num_held -= 1


class Recording:
    """New blocks of one prompt, filled a layer at a time while it runs."""

    def __init__(self, cache: PrefixCache, start: int, blocks: Sequence[_Block]) -> None:
        self._cache = cache
        self._start = start
        self._blocks = blocks

    def copy(self, layer: int, written: tuple[Tensor, Tensor], row: int) -> None:
        """Take over what ``layer`` made: key and value [rows, N, T, W], the prompt's ``row``."""
        key, value = (cast(Array, tensor)[row] for tensor in written)  # [N, T, W]
        for index, block in enumerate(self._blocks):
            start = self._start + index * BLOCK_TOKENS
            block.values[layer, 0] = key[:, start : start + BLOCK_TOKENS]
            block.values[layer, 1] = value[:, start : start + BLOCK_TOKENS]

    def commit(self) -> None:
        """All layers have been copied."""
        self._cache.keep(self._blocks)
        self._blocks = ()

    def give_up(self) -> None:
        """The prompt did not end; nothing after `commit`."""
        self._cache.drop(self._blocks)
        self._blocks = ()


def restore(blocks: Sequence[_Block], layer: int, target: tuple[Tensor, Tensor]) -> None:
    """Write what ``layer`` made of ``blocks`` to one row's key and value [1, N, T, W]."""
    key, value = (cast(Array, tensor)[0] for tensor in target)
    for index, block in enumerate(blocks):
        start = index * BLOCK_TOKENS
        key[:, start : start + BLOCK_TOKENS] = block.values[layer, 0]
        value[:, start : start + BLOCK_TOKENS] = block.values[layer, 1]
