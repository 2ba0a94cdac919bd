"""Make checkpoints with outlier channels, which exceed int8 with one scale per token."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import OPTForCausalLM


def plant_outliers(checkpoint: Path, directory: Path, factor: float = 200) -> Path:
    """Save the same model in ``directory`` with one large channel after each norm.

    The weights after the norm cancel the factor, so that nothing changes in float.
    """
    model = OPTForCausalLM.from_pretrained(checkpoint)
    with torch.no_grad():
        for layer in model.model.decoder.layers:
            attention = layer.self_attn
            qkv = [attention.q_proj, attention.k_proj, attention.v_proj]
            for norm, readers in (
                (layer.self_attn_layer_norm, qkv),
                (layer.final_layer_norm, [layer.fc1]),
            ):
                norm.weight[3] *= factor
                norm.bias[3] *= factor
                for reader in readers:
                    reader.weight[:, 3] /= factor
    model.save_pretrained(directory)
    return directory
