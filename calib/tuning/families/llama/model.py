"""Hugging Face's LLaMA and its relatives with a forward pass that skips layers.

They share the names of their parts. A layer rotates queries and keys by the position in the row,
also where a row's later tokens skip the layer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor, nn
from transformers import (
    GraniteForCausalLM,
    LlamaForCausalLM,
    MistralForCausalLM,
    Olmo2ForCausalLM,
    Phi3ForCausalLM,
    Qwen2ForCausalLM,
    Qwen3ForCausalLM,
    SmolLM3ForCausalLM,
)
from typing_extensions import override

from ...model import SkipModel


class SkipRotaryModel(SkipModel):
    """A model with rotary positions and a final norm that follows a schedule."""

    @property
    @override
    def decoder_layers(self) -> Sequence[nn.Module]:
        layers: Sequence[nn.Module] = self.model.layers
        return layers

    @override
    def embedded(self, input_ids: Tensor, positions: Tensor) -> Tensor:
        tokens: Tensor = self.model.embed_tokens(input_ids)  # [B, S, E]
        return tokens

    @override
    def run_layer(
        self, layer: nn.Module, hidden: Tensor, positions: Tensor, mask: Tensor | None = None
    ) -> Tensor:
        rotations = self.model.rotary_emb(hidden, position_ids=positions[None])
        after: Tensor = layer(hidden, attention_mask=mask, position_embeddings=rotations)
        return after

    @override
    def head(self, rows: Tensor) -> Tensor:
        logits: Tensor = self.lm_head(self.model.norm(rows))  # [R, V]
        return logits.float()


class SkipLlamaForCausalLM(SkipRotaryModel, LlamaForCausalLM):  # type: ignore[misc]
    """LLaMA that follows a schedule."""

    plain_class = LlamaForCausalLM


class SkipMistralForCausalLM(SkipRotaryModel, MistralForCausalLM):  # type: ignore[misc]
    """Mistral that follows a schedule; texts are no longer than its sliding window."""

    plain_class = MistralForCausalLM


class SkipQwen2ForCausalLM(SkipRotaryModel, Qwen2ForCausalLM):  # type: ignore[misc]
    """Qwen2 that follows a schedule."""

    plain_class = Qwen2ForCausalLM


class SkipQwen3ForCausalLM(SkipRotaryModel, Qwen3ForCausalLM):  # type: ignore[misc]
    """Qwen3 that follows a schedule."""

    plain_class = Qwen3ForCausalLM


class SkipPhi3ForCausalLM(SkipRotaryModel, Phi3ForCausalLM):  # type: ignore[misc]
    """Phi-3 that follows a schedule."""

    plain_class = Phi3ForCausalLM


class SkipSmolLM3ForCausalLM(SkipRotaryModel, SmolLM3ForCausalLM):  # type: ignore[misc]
    """SmolLM3 that follows a schedule."""

    plain_class = SmolLM3ForCausalLM


class SkipOlmo2ForCausalLM(SkipRotaryModel, Olmo2ForCausalLM):  # type: ignore[misc]
    """OLMo 2 that follows a schedule."""

    plain_class = Olmo2ForCausalLM


class SkipGraniteForCausalLM(SkipRotaryModel, GraniteForCausalLM):  # type: ignore[misc]
    """Granite that follows a schedule; embeddings and logits have its multipliers."""

    plain_class = GraniteForCausalLM

    @override
    def embedded(self, input_ids: Tensor, positions: Tensor) -> Tensor:
        tokens: Tensor = super().embedded(input_ids, positions) * self.model.embedding_multiplier
        return tokens

    @override
    def head(self, rows: Tensor) -> Tensor:
        logits: Tensor = super().head(rows) / self.config.logits_scaling
        return logits


MODEL_CLASSES: Mapping[str, type[SkipRotaryModel]] = {
    "llama": SkipLlamaForCausalLM,
    "mistral": SkipMistralForCausalLM,
    "qwen2": SkipQwen2ForCausalLM,
    "qwen3": SkipQwen3ForCausalLM,
    "phi3": SkipPhi3ForCausalLM,
    "granite": SkipGraniteForCausalLM,
    "smollm3": SkipSmolLM3ForCausalLM,
    "olmo2": SkipOlmo2ForCausalLM,
}
"""Classes of trained models by ``model_type``."""
