"""The OPT family, as `TuningFamily` defines it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ...family import FreshModelConfig
    from .model import SkipOPTForCausalLM


class OptTuning:
    """Tunes OPT models."""

    adapter_targets = ("q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2")
    optional_sizes = ("ffn", "positions", "dropout")

    def fresh_config(self, sizes: FreshModelConfig) -> dict[str, Any]:
        """Return config.json of a pre-norm OPT with tied embeddings, as wide as its layers."""
        return {
            "model_type": "opt",
            "architectures": ["OPTForCausalLM"],
            "num_hidden_layers": sizes.layers,
            "hidden_size": sizes.width,
            "word_embed_proj_dim": sizes.width,
            "num_attention_heads": sizes.heads,
            "ffn_dim": sizes.ffn or 4 * sizes.width,
            "max_position_embeddings": sizes.positions,
            "dropout": sizes.dropout,
            "layerdrop": 0.0,
        }

    def model_class(self) -> type[SkipOPTForCausalLM]:
        """Return the trained model's class, imported only when called."""
        from .model import SkipOPTForCausalLM

        return SkipOPTForCausalLM


OPT = OptTuning()
