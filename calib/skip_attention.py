"""Attention of a training step: PyTorch's fused kernel, which on CPUs gets float32."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

ATTENTION = "skipdec"  # its name in transformers' configurations

_LONGEST_IN_FLOAT32 = 512  # tokens; beyond, bfloat16 is the faster one on CPUs too


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **options: Any,  # noqa: ANN401  (transformers')
) -> tuple[Tensor, None]:
    """transformers' ``sdpa``, [B, H, S, D] each → [B, S, H, D] in the query's dtype.

    Under bfloat16 autocast a CPU computes up to 512 tokens in float32: the kernel's backward pass
    is slower in bfloat16, and a whole step takes up to 1.7 times as long (docs/tuning.md).
    """
    is_short = query.shape[2] <= _LONGEST_IN_FLOAT32
    if query.device.type != "cpu" or query.dtype == torch.float32 or not is_short:
        output, _ = sdpa_attention_forward(module, query, key, value, attention_mask, **options)
        return output, None
    with torch.autocast("cpu", enabled=False):
        output, _ = sdpa_attention_forward(
            module, query.float(), key.float(), value.float(), attention_mask, **options
        )
    return output.to(query.dtype), None


AttentionInterface.register(ATTENTION, attention)
