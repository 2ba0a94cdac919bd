"""Checkpoints with outlier channels, which int8's one scale per token can not hold."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import OPTForCausalLM


def plant_outliers(checkpoint: Path, directory: Path, factor: float = 200) -> Path:
    """Save in ``directory`` the same model with one large channel behind each norm.

    The weights behind the norm undo it, so that in float nothing changes.
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
