"""The Architecture of all families whose models are decoders as data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from ...engines.manifest import EngineKind, FloatType, ModelSpec
from .architecture import HEAD_WEIGHT, Architecture, CachedAttention, MigrationSite
from .decoder import EMBEDDING, Decoder, Rotation
from .model_config import FamilySpec
from .signature import Signature, decoder_signature
from .weights import Parameter

if TYPE_CHECKING:
    import torch
    from torch import nn


class DecoderArchitecture(Architecture):
    """A family whose models are decoders as data; only ``reference`` imports transformers."""

    def __init__(
        self,
        read: Callable[[Mapping[str, Any], str, int | None], FamilySpec],
        decoder: Callable[[ModelSpec], Decoder],
        reference: Callable[[ModelSpec], Any],
    ) -> None:
        self._read = read
        self._decoder = decoder
        self._reference = reference

    @override
    def spec_from_config(
        self, config: Mapping[str, Any], name: str, max_seq_len: int | None
    ) -> ModelSpec:
        return self._read(config, name, max_seq_len).model_spec()

    @override
    def parameters(
        self, kind: EngineKind, model: ModelSpec, layer_index: int | None
    ) -> tuple[Parameter, ...]:
        return self._decoder(model).parameters(kind, layer_index)

    def spare_tensors(self, model: ModelSpec) -> Mapping[str, str | None]:
        """Return a tied head, and buffers that old files have."""
        decoder = self._decoder(model)
        tied = {HEAD_WEIGHT: f"{decoder.prefix}{EMBEDDING}.weight"}
        buffers: dict[str, str | None] = dict.fromkeys(decoder.buffers)
        return buffers | (tied if model.tie_word_embeddings else {})

    @override
    def signature(self, kind: EngineKind, model: ModelSpec, dtype: FloatType) -> Signature:
        rotates = isinstance(self._decoder(model).positions, Rotation)
        return decoder_signature(
            kind, model, dtype, positions_in_layers=rotates, positions_in_embed=not rotates
        )

    @override
    def module(
        self, kind: EngineKind, model: ModelSpec, dtype: torch.dtype, attention: CachedAttention
    ) -> nn.Module:
        from .decoder_modules import DecoderEmbedding, DecoderHead, DecoderLayer

        decoder = self._decoder(model)
        if kind is EngineKind.EMBED:
            return DecoderEmbedding(decoder, dtype)
        if kind is EngineKind.HEAD:
            return DecoderHead(decoder, dtype)
        return DecoderLayer(decoder, dtype, attention)

    @override
    def migration_sites(
        self, kind: EngineKind, model: ModelSpec, layer_index: int | None
    ) -> Mapping[str, MigrationSite]:
        return self._decoder(model).sites(kind, layer_index)

    @override
    def reference_model(self, model: ModelSpec) -> Any:
        return self._reference(model)
