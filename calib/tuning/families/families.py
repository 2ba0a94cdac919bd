"""What tuning knows of each model family, as `TuningFamily` defines it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..family import FreshModelConfig
    from ..model import SkipModel

_FFN_MULTIPLE = 32  # the block of int4 weights


def _learned_positions(sizes: FreshModelConfig) -> dict[str, Any]:
    """Return the fields of a pre-norm OPT with tied embeddings, as wide as its layers."""
    return {
        "word_embed_proj_dim": sizes.width,
        "ffn_dim": sizes.ffn or 4 * sizes.width,
        "dropout": sizes.dropout,
        "layerdrop": 0.0,
    }


def _rotary(sizes: FreshModelConfig) -> dict[str, Any]:
    """Return the fields of a relative of LLaMA with a tied head.

    Without ``ffn``, the feed-forward's three matrices have as many weights as OPT's two: 8/3 of
    the width, rounded up to a multiple of 32. Width 256 gives 704.
    """
    ffn = -(-8 * sizes.width // (3 * _FFN_MULTIPLE)) * _FFN_MULTIPLE
    return {
        "num_key_value_heads": sizes.kv_heads or sizes.heads,
        "head_dim": sizes.head_size,
        "intermediate_size": sizes.ffn or ffn,
        "tie_word_embeddings": True,
    }


@dataclass(frozen=True)
class Tuning:
    """Tunes models of one ``model_type``; ``architecture`` is its class in transformers.

    ``fields``: those of config.json that not all families have.
    """

    model_type: str
    architecture: str
    adapter_targets: Sequence[str] = (
        *("q_proj", "k_proj", "v_proj", "o_proj"),
        *("gate_proj", "up_proj", "down_proj"),
    )
    optional_sizes: Sequence[str] = ("kv_heads", "head_dim", "ffn", "positions")
    fields: Callable[[FreshModelConfig], dict[str, Any]] = _rotary

    def fresh_config(self, sizes: FreshModelConfig) -> dict[str, Any]:
        """Return config.json of a new model, without its vocabulary and token ids."""
        return {
            "model_type": self.model_type,
            "architectures": [self.architecture],
            "num_hidden_layers": sizes.layers,
            "hidden_size": sizes.width,
            "num_attention_heads": sizes.heads,
            "max_position_embeddings": sizes.positions,
            **self.fields(sizes),
        }

    def model_class(self) -> type[SkipModel]:
        """Return the trained model's class, imported only when called."""
        from .models import MODEL_CLASSES

        return MODEL_CLASSES[self.model_type]


OPT = Tuning(
    "opt",
    "OPTForCausalLM",
    adapter_targets=("q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2"),
    optional_sizes=("ffn", "positions", "dropout"),
    fields=_learned_positions,
)
LLAMA = Tuning("llama", "LlamaForCausalLM")
MISTRAL = Tuning("mistral", "MistralForCausalLM")
QWEN2 = Tuning("qwen2", "Qwen2ForCausalLM")
QWEN3 = Tuning("qwen3", "Qwen3ForCausalLM")
PHI3 = Tuning(
    "phi3", "Phi3ForCausalLM", adapter_targets=("qkv_proj", "o_proj", "gate_up_proj", "down_proj")
)
GRANITE = Tuning("granite", "GraniteForCausalLM")
SMOLLM3 = Tuning("smollm3", "SmolLM3ForCausalLM")
OLMO2 = Tuning("olmo2", "Olmo2ForCausalLM")
