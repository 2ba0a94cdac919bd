"""LLaMA and its relatives, as `TuningFamily` defines a family."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ...family import FreshModelConfig
    from .model import SkipRotaryModel

_PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
_PACKED = ("qkv_proj", "o_proj", "gate_up_proj", "down_proj")
_FFN_MULTIPLE = 32  # the block of int4 weights


class RotaryTuning:
    """Tunes models of one ``model_type``; ``architecture`` is its class in transformers."""

    optional_sizes = ("kv_heads", "head_dim", "ffn", "positions")

    def __init__(
        self, model_type: str, architecture: str, *, adapter_targets: Sequence[str] = _PROJECTIONS
    ) -> None:
        self._model_type = model_type
        self._architecture = architecture
        self.adapter_targets = adapter_targets

    def fresh_config(self, sizes: FreshModelConfig) -> dict[str, Any]:
        """Return config.json of a new model with a tied head.

        Without ``ffn``, the feed-forward's three matrices have as many weights as OPT's two: 8/3 of
        the width, rounded up to a multiple of 32. Width 256 gives 704.
        """
        ffn = -(-8 * sizes.width // (3 * _FFN_MULTIPLE)) * _FFN_MULTIPLE
        return {
            "model_type": self._model_type,
            "architectures": [self._architecture],
            "num_hidden_layers": sizes.layers,
            "hidden_size": sizes.width,
            "num_attention_heads": sizes.heads,
            "num_key_value_heads": sizes.kv_heads or sizes.heads,
            "head_dim": sizes.head_size,
            "intermediate_size": sizes.ffn or ffn,
            "max_position_embeddings": sizes.positions,
            "tie_word_embeddings": True,
        }

    def model_class(self) -> type[SkipRotaryModel]:
        """Return the trained model's class, imported only when called."""
        from .model import MODEL_CLASSES

        return MODEL_CLASSES[self._model_type]


LLAMA = RotaryTuning("llama", "LlamaForCausalLM")
MISTRAL = RotaryTuning("mistral", "MistralForCausalLM")
QWEN2 = RotaryTuning("qwen2", "Qwen2ForCausalLM")
QWEN3 = RotaryTuning("qwen3", "Qwen3ForCausalLM")
PHI3 = RotaryTuning("phi3", "Phi3ForCausalLM", adapter_targets=_PACKED)
GRANITE = RotaryTuning("granite", "GraniteForCausalLM")
SMOLLM3 = RotaryTuning("smollm3", "SmolLM3ForCausalLM")
OLMO2 = RotaryTuning("olmo2", "Olmo2ForCausalLM")
