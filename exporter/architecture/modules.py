"""Torch modules shared by all families, and functions that create and call engine modules.

The exporter traces the modules (graphs/trace.py) and verifies engines against them. Weights are
``torch.empty`` parameters of shape [in, out]. Tracing never touches them, so they take no memory.
The arguments of a module's ``forward`` are named after their roles (``engines.manifest.TensorRole``
has their shapes) and ordered as in the family's signature.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...engines.manifest import NUM_CANDIDATES, ModelSpec, TensorRole

CachedAttention = Callable[..., tuple[Tensor, Tensor, Tensor]]
"""``cached_attention`` or a replacement, called by a layer's module."""


def cached_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    past_key: Tensor,
    past_value: Tensor,
    write_indices: Tensor,
    attention_mask: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Write key and value into copies of the caches, then attend over them; eager torch.

    Query, key and value are [B, N, S, D]; row b is written from ``write_indices[b]`` on (operator
    TensorScatter, axis 2). Returns attention [B, N, S, D], present_key, present_value. Key and
    value may have fewer heads (grouped-query attention). Unused cache positions must be finite:
    their weight is 0, and 0 times NaN is NaN.
    """
    rows = torch.arange(key.shape[0])[:, None]  # [B, 1]
    positions = write_indices[:, None] + torch.arange(key.shape[2])  # [B, S]
    present_key, present_value = past_key.clone(), past_value.clone()
    present_key[rows, :, positions] = key.transpose(1, 2)
    present_value[rows, :, positions] = value.transpose(1, 2)
    attended = F.scaled_dot_product_attention(
        query,
        present_key,
        present_value,
        attn_mask=attention_mask,
        enable_gqa=query.shape[1] != key.shape[1],
    )
    return attended, present_key, present_value


class Projection(nn.Module):
    """``x @ weight + bias`` with the weight stored as [in, out]."""

    def __init__(self, in_size: int, out_size: int, *, bias: bool, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(in_size, out_size, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(out_size, dtype=dtype)) if bias else None

    def forward(self, inputs: Tensor) -> Tensor:
        """Map [..., in] to [..., out]."""
        product = torch.matmul(inputs, self.weight)
        return product if self.bias is None else product + self.bias


class Table(nn.Module):
    """An embedding table [rows, size], looked up by row."""

    def __init__(self, rows: int, size: int, *, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(rows, size, dtype=dtype))

    def forward(self, indices: Tensor) -> Tensor:
        """Map indices [B, S] to [B, S, size]."""
        return F.embedding(indices, self.weight)


class Candidates(nn.Module):
    """The most probable tokens of each row, so that a device need not copy out all logits."""

    def __init__(self, model: ModelSpec) -> None:
        super().__init__()
        self.count = min(NUM_CANDIDATES, model.vocab_size)

    def forward(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Return the K largest logits of each row of [R, V], descending, and their ids, [R, K]."""
        values, indices = torch.topk(logits, self.count, dim=-1)
        return values, indices


def call_by_role(module: nn.Module, tensors: Mapping[TensorRole, Tensor]) -> tuple[Tensor, ...]:
    """Call ``module`` with those of ``tensors`` that it takes; return its outputs in order."""
    wanted = inspect.signature(module.forward).parameters
    outputs = module(*(tensors[TensorRole(name)] for name in wanted))
    return outputs if isinstance(outputs, tuple) else (outputs,)
