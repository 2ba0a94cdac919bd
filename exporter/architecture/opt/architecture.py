"""OPT as an Architecture."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from ....engines.manifest import EngineKind, FloatType, ModelSpec
from ..architecture import HEAD_WEIGHT, Architecture, CachedAttention, MigrationSite
from ..signature import Signature, decoder_signature
from ..weights import Parameter
from .migration import head_sites, layer_sites
from .published import PUBLISHED
from .structure import OptSpec, read_structure
from .weights import EMBEDDING, embed_parameters, head_parameters, layer_parameters

if TYPE_CHECKING:
    import torch
    from torch import nn


class OptArchitecture(Architecture):
    """The OPT family, which includes Galactica: its checkpoints have the model type OPT."""

    published = PUBLISHED

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

    def reference_model(self, model: ModelSpec) -> Any:  # noqa: ANN401
        """Return ``transformers.OPTForCausalLM`` with parameters on the meta device."""
        from .reference import hugging_face_model

        return hugging_face_model(OptSpec.of(model))


OPT = OptArchitecture()
