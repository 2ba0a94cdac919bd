"""The LLaMA family as an Architecture."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from ....engines.manifest import EngineKind, FloatType, ModelSpec
from ..architecture import HEAD_WEIGHT, Architecture, CachedAttention, MigrationSite
from ..signature import Signature, decoder_signature
from ..weights import Parameter
from .structure import LlamaSpec, read_structure
from .weights import (
    EMBEDDING,
    embed_parameters,
    head_parameters,
    head_sites,
    layer_parameters,
    layer_prefix,
    layer_sites,
)

if TYPE_CHECKING:
    import torch
    from torch import nn


class LlamaArchitecture(Architecture):
    """All model types of the family; ``ModelSpec.family`` is Hugging Face's model_type."""

    @override
    def spec_from_config(
        self, config: Mapping[str, Any], name: str, max_seq_len: int | None
    ) -> ModelSpec:
        return read_structure(config, name, max_seq_len).model_spec()

    @override
    def parameters(
        self, kind: EngineKind, model: ModelSpec, layer_index: int | None
    ) -> tuple[Parameter, ...]:
        spec = LlamaSpec.of(model)
        if kind is EngineKind.EMBED:
            return embed_parameters(spec)
        if kind is EngineKind.HEAD:
            return head_parameters(spec)
        assert layer_index is not None
        return layer_parameters(spec, layer_index)

    def spare_tensors(self, model: ModelSpec) -> Mapping[str, str | None]:
        """Return a tied head, and the rotary frequencies that old LLaMA files have per layer."""
        tied = {HEAD_WEIGHT: EMBEDDING} if model.tie_word_embeddings else {}
        layers = range(model.num_layers)
        buffers = {f"{layer_prefix(index)}self_attn.rotary_emb.inv_freq": None for index in layers}
        return {**buffers, **tied}

    @override
    def signature(self, kind: EngineKind, model: ModelSpec, dtype: FloatType) -> Signature:
        return decoder_signature(
            kind, model, dtype, positions_in_layers=True, positions_in_embed=False
        )

    @override
    def module(
        self, kind: EngineKind, model: ModelSpec, dtype: torch.dtype, attention: CachedAttention
    ) -> nn.Module:
        from .modules import DecoderLayer, Embedding, Head

        spec = LlamaSpec.of(model)
        if kind is EngineKind.EMBED:
            return Embedding(spec, dtype)
        if kind is EngineKind.HEAD:
            return Head(spec, dtype)
        return DecoderLayer(spec, dtype, attention)

    @override
    def migration_sites(
        self, kind: EngineKind, model: ModelSpec, layer_index: int | None
    ) -> Mapping[str, MigrationSite]:
        if kind is EngineKind.LAYER:
            assert layer_index is not None
            return layer_sites(LlamaSpec.of(model), layer_index)
        return head_sites() if kind is EngineKind.HEAD else {}

    @override
    def reference_model(self, model: ModelSpec) -> Any:
        from .reference import reference_model

        return reference_model(LlamaSpec.of(model))


LLAMA = LlamaArchitecture()
