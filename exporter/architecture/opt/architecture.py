"""OPT as an Architecture."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from ....engines.manifest import EngineKind, FloatType, ModelSpec
from ..architecture import HEAD_WEIGHT, Architecture, CachedAttention, MigrationSite
from ..signature import Signature, decoder_signature
from ..weights import Parameter
from .structure import OptSpec, read_structure
from .weights import (
    EMBEDDING,
    embed_parameters,
    head_parameters,
    head_sites,
    layer_parameters,
    layer_sites,
)

if TYPE_CHECKING:
    import torch
    from torch import nn


class OptArchitecture(Architecture):
    """The OPT family, which includes Galactica: its checkpoints have the model type OPT."""

    @override
    def spec_from_config(
        self, config: Mapping[str, Any], name: str, max_seq_len: int | None
    ) -> ModelSpec:
        return read_structure(config, name, max_seq_len).model_spec()

    @override
    def parameters(
        self, kind: EngineKind, model: ModelSpec, layer_index: int | None
    ) -> tuple[Parameter, ...]:
        spec = OptSpec.of(model)
        if kind is EngineKind.EMBED:
            return embed_parameters(spec)
        if kind is EngineKind.HEAD:
            return head_parameters(spec)
        return layer_parameters(spec, f"decoder.layers.{layer_index}.")

    def spare_tensors(self, model: ModelSpec) -> Mapping[str, str | None]:
        """Return a tied head, and a buffer of old fairseq conversions."""
        tied = {HEAD_WEIGHT: EMBEDDING} if model.tie_word_embeddings else {}
        return {"decoder.version": None, **tied}

    @override
    def signature(self, kind: EngineKind, model: ModelSpec, dtype: FloatType) -> Signature:
        return decoder_signature(kind, model, dtype)

    @override
    def module(
        self, kind: EngineKind, model: ModelSpec, dtype: torch.dtype, attention: CachedAttention
    ) -> nn.Module:
        from .modules import DecoderLayer, Embedding, Head

        spec = OptSpec.of(model)
        if kind is EngineKind.EMBED:
            return Embedding(spec, dtype)
        if kind is EngineKind.HEAD:
            return Head(spec, dtype)
        return DecoderLayer(spec, dtype, attention)

    @override
    def migration_sites(
        self, kind: EngineKind, model: ModelSpec, layer_index: int | None
    ) -> Mapping[str, MigrationSite]:
        spec = OptSpec.of(model)
        parameters = {each.name: each for each in self.parameters(kind, model, layer_index)}
        if kind is EngineKind.LAYER:
            return layer_sites(spec, parameters)
        return head_sites(spec, parameters) if kind is EngineKind.HEAD else {}

    @override
    def reference_model(self, model: ModelSpec) -> Any:
        import torch
        from transformers import OPTConfig, OPTForCausalLM

        spec = OptSpec.of(model)
        config = OPTConfig(
            vocab_size=spec.vocab_size,
            hidden_size=spec.hidden_size,
            word_embed_proj_dim=spec.word_embed_proj_dim,
            num_hidden_layers=spec.num_layers,
            num_attention_heads=spec.num_heads,
            ffn_dim=spec.ffn_dim,
            max_position_embeddings=spec.max_position_embeddings,
            do_layer_norm_before=spec.do_layer_norm_before,
            _remove_final_layer_norm=spec.do_layer_norm_before and not spec.final_layer_norm,
            enable_bias=spec.enable_bias,
            layer_norm_elementwise_affine=spec.layer_norm_elementwise_affine,
            activation_function=spec.activation_function,
            tie_word_embeddings=spec.tie_word_embeddings,
            bos_token_id=spec.bos_token_id,
            eos_token_id=spec.eos_token_id,
            pad_token_id=spec.pad_token_id,
        )
        with torch.device("meta"):
            return OPTForCausalLM(config)


OPT = OptArchitecture()
