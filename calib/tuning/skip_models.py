"""Hugging Face's models of every family, with a forward pass that skips layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor, nn
from transformers import (
    GraniteForCausalLM,
    LlamaForCausalLM,
    MistralForCausalLM,
    Olmo2ForCausalLM,
    OPTForCausalLM,
    Phi3ForCausalLM,
    PreTrainedModel,
    Qwen2ForCausalLM,
    Qwen3ForCausalLM,
    SmolLM3ForCausalLM,
)
from typing_extensions import override

from .model import SkipModel


class SkipOPTForCausalLM(SkipModel, OPTForCausalLM):  # type: ignore[misc]  # transformers is untyped
    """OPT that follows a schedule; the configuration's ``layerdrop`` is ignored."""

    plain_class = OPTForCausalLM

    @property
    @override
    def decoder_layers(self) -> Sequence[nn.Module]:
        layers: Sequence[nn.Module] = self.model.decoder.layers
        return layers

    @override
    def embedded(self, input_ids: Tensor, positions: Tensor) -> Tensor:
        decoder = self.model.decoder
        tokens = decoder.embed_tokens(input_ids)  # [B, S, P]
        if decoder.project_in is not None:
            tokens = decoder.project_in(tokens)  # [B, S, E]
        hidden: Tensor = tokens + decoder.embed_positions(None, position_ids=positions[None])
        return hidden

    @property
    @override
    def head_weights(self) -> Sequence[str]:
        parts = ("final_layer_norm.weight", "final_layer_norm.bias", "project_out.weight")
        names = {name for name, _ in self.model.decoder.named_parameters()}
        return (*(f"model.decoder.{part}" for part in parts if part in names), "lm_head.weight")

    @override
    def run_layer(
        self,
        layer: nn.Module,
        hidden: Tensor,
        positions: Tensor,
        mask: Tensor | None = None,
        past: object = None,
    ) -> Tensor:
        after: Tensor = layer(hidden, attention_mask=mask, past_key_values=past)
        return after

    @override
    def head(self, rows: Tensor) -> Tensor:
        decoder = self.model.decoder
        if decoder.final_layer_norm is not None:
            rows = decoder.final_layer_norm(rows)
        if decoder.project_out is not None:
            rows = decoder.project_out(rows)  # [R, P]
        logits: Tensor = self.lm_head(rows)  # [R, V]
        return logits.float()


class SkipRotaryModel(SkipModel):
    """A relative of LLaMA that follows a schedule; texts must fit into any sliding window.

    All relatives share the names of their modules. A layer rotates queries and keys by the position
    in the row, even if later tokens of the row skip the layer.
    """

    @property
    @override
    def decoder_layers(self) -> Sequence[nn.Module]:
        layers: Sequence[nn.Module] = self.model.layers
        return layers

    @override
    def embedded(self, input_ids: Tensor, positions: Tensor) -> Tensor:
        tokens: Tensor = self.model.embed_tokens(input_ids)  # [B, S, E]
        return tokens

    @property
    @override
    def head_weights(self) -> Sequence[str]:
        return ("model.norm.weight", "lm_head.weight")

    @override
    def run_layer(
        self,
        layer: nn.Module,
        hidden: Tensor,
        positions: Tensor,
        mask: Tensor | None = None,
        past: object = None,
    ) -> Tensor:
        rotations = self.model.rotary_emb(hidden, position_ids=positions[None])
        after: Tensor = layer(
            hidden, attention_mask=mask, position_embeddings=rotations, past_key_values=past
        )
        return after

    @override
    def head(self, rows: Tensor) -> Tensor:
        logits: Tensor = self.lm_head(self.model.norm(rows))  # [R, V]
        return logits.float()


class SkipGraniteForCausalLM(SkipRotaryModel, GraniteForCausalLM):  # type: ignore[misc]
    """Granite that follows a schedule, with its multipliers of embeddings and logits."""

    plain_class = GraniteForCausalLM

    @override
    def embedded(self, input_ids: Tensor, positions: Tensor) -> Tensor:
        tokens: Tensor = super().embedded(input_ids, positions) * self.model.embedding_multiplier
        return tokens

    @override
    def head(self, rows: Tensor) -> Tensor:
        logits: Tensor = super().head(rows) / self.config.logits_scaling
        return logits


def _rotary(plain_class: type[PreTrainedModel]) -> type[SkipRotaryModel]:
    """Return the layer-skipping class for a model that differs from its relatives in data only."""
    name, bases = f"Skip{plain_class.__name__}", (SkipRotaryModel, plain_class)
    return type(name, bases, {"plain_class": plain_class, "__module__": __name__})


MODEL_CLASSES: Mapping[str, type[SkipModel]] = {
    "opt": SkipOPTForCausalLM,
    "llama": _rotary(LlamaForCausalLM),
    "mistral": _rotary(MistralForCausalLM),
    "qwen2": _rotary(Qwen2ForCausalLM),
    "qwen3": _rotary(Qwen3ForCausalLM),
    "phi3": _rotary(Phi3ForCausalLM),
    "granite": SkipGraniteForCausalLM,
    "smollm3": _rotary(SmolLM3ForCausalLM),
    "olmo2": _rotary(Olmo2ForCausalLM),
}
"""Training classes by ``model_type``."""
