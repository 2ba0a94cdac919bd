"""A model family as the exporter sees it, and the registry of families.

Adding a family is a folder here with an ``Architecture``, and its line in ``ARCHITECTURES``. What
it must keep: engines by kind as in ``engines.manifest``, hidden states [B, S, E] between them, a
KV cache [B, N, T, D] a layer, and a head whose vocabulary product is named ``HEAD_WEIGHT``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from ...engines.manifest import EngineKind, FloatType, ModelSpec
from ...engines.registry import Registry
from .signature import Signature
from .weights import Parameter

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn


HEAD_WEIGHT = "lm_head.weight"

ARCHITECTURES = Registry("model_type", {"opt": "exporter.architecture.opt.architecture:OPT"})
"""``Architecture`` objects by the ``model_type`` of Hugging Face's config.json."""

CachedAttention = Callable[..., "tuple[Tensor, Tensor, Tensor]"]
"""``modules.cached_attention`` or what stands in for it: a layer's module calls it."""


@dataclass(frozen=True)
class MigrationSite:
    """Where factors of one product's inputs go (``quantization.migration``).

    ``producers``: the checkpoint tensors whose first axis makes the inputs; they are divided.
    ``fixed``: the reason why no factor can be divided out; None if ``producers`` are.
    """

    producers: tuple[str, ...] = ()
    fixed: str | None = None


class Architecture(Protocol):
    """One model family. Nothing here imports torch but inside ``module`` and ``reference_model``.

    ``kind`` is embed, layer or head; ``layer_index`` is given for a layer, None elsewhere.
    """

    @property
    def published(self) -> Mapping[str, Mapping[str, Any]]:
        """config.json of published checkpoints by hub id; the id's last part is a short name."""
        ...

    def spec_from_config(
        self, config: Mapping[str, Any], name: str, max_seq_len: int | None
    ) -> ModelSpec:
        """The structure that config.json describes; see ``model_config.model_spec``."""
        ...

    def parameters(
        self, kind: EngineKind, model: ModelSpec, layer_index: int | None
    ) -> tuple[Parameter, ...]:
        """All parameters of one engine, quantised products in the order in which they run."""
        ...

    def spare_tensors(self, model: ModelSpec) -> Mapping[str, str | None]:
        """Tensors that a checkpoint may hold beside those that ``parameters`` read.

        Each maps to the tensor that it must equal, as a tied head's, or to None: it is ignored.
        """
        ...

    def signature(self, kind: EngineKind, model: ModelSpec, dtype: FloatType) -> Signature:
        """Inputs and outputs of the canonical graph, mostly ``signature.decoder_signature``."""
        ...

    def module(
        self, kind: EngineKind, model: ModelSpec, dtype: torch.dtype, attention: CachedAttention
    ) -> nn.Module:
        """The module of one engine, its weights uninitialised; see ``modules.engine_module``."""
        ...

    def migration_sites(
        self, kind: EngineKind, model: ModelSpec, layer_index: int | None
    ) -> Mapping[str, MigrationSite]:
        """The site of each quantised product of an engine, by the name of its weight."""
        ...

    def reference_model(self, model: ModelSpec) -> Any:  # noqa: ANN401  (transformers is untyped)
        """Hugging Face's own causal language model, its parameters on the meta device.

        Called with input_ids int64 [B, S] it returns an object with ``logits`` [B, S, V]. Its
        state_dict has a checkpoint's names, with a leading ``model.`` where there is one.
        """
        ...


def architecture_of(model: ModelSpec) -> Architecture:
    """The family of ``model``. Raises UsageError for one that this exporter does not know."""
    architecture: Architecture = ARCHITECTURES.load(model.family)
    return architecture


def engine_parameters(
    kind: EngineKind, model: ModelSpec, layer_index: int | None = None
) -> tuple[Parameter, ...]:
    """All parameters of one engine; ``layer_index`` is required for a layer, refused elsewhere."""
    assert (layer_index is not None) == (kind is EngineKind.LAYER), (kind, layer_index)
    if kind is EngineKind.CANDIDATES:
        return ()
    return architecture_of(model).parameters(kind, model, layer_index)


def quantized_parameters(kind: EngineKind, model: ModelSpec) -> tuple[str, ...]:
    """The weights of an engine's products that may be quantised, in the order of running.

    They are named alike in all layers.
    """
    layer_index = 0 if kind is EngineKind.LAYER else None
    parameters = engine_parameters(kind, model, layer_index)
    return tuple(parameter.name for parameter in parameters if parameter.is_product)


def expected_tensors(model: ModelSpec) -> dict[str, tuple[int, ...]]:
    """Every tensor that a checkpoint of ``model`` must hold, with its shape, by canonical name."""
    engines: list[tuple[EngineKind, int | None]] = [
        (EngineKind.EMBED, None),
        *((EngineKind.LAYER, index) for index in range(model.num_layers)),
        (EngineKind.HEAD, None),
    ]
    return {
        source: parameter.source_shape(position)
        for kind, index in engines
        for parameter in engine_parameters(kind, model, index)
        for position, source in enumerate(parameter.sources)
    }


def canonical_signature(kind: EngineKind, model: ModelSpec, dtype: FloatType) -> Signature:
    """The signature of a canonical graph; ``dtype`` is that of hidden states and KV cache."""
    return architecture_of(model).signature(kind, model, dtype)


def short_names() -> tuple[str, ...]:
    """``opt-125m`` ...: the last parts of all hub ids."""
    return tuple(hub_id.rpartition("/")[2] for hub_id in _published())


def hub_id(model: str) -> str:
    """Return the hub id of a short name; any other text is returned unchanged.

    >>> hub_id("opt-1.3b"), hub_id("me/my-opt")
    ('facebook/opt-1.3b', 'me/my-opt')
    """
    return next((known for known in _published() if known.endswith(f"/{model}")), model)


def family_config(model: str) -> dict[str, Any] | None:
    """Return config.json of a published model by short name or hub id; None for any other."""
    config = _published().get(hub_id(model))
    return None if config is None else dict(config)


def _published() -> Mapping[str, Mapping[str, Any]]:
    published: dict[str, Mapping[str, Any]] = {}
    for model_type in ARCHITECTURES:
        architecture: Architecture = ARCHITECTURES.load(model_type)
        published |= architecture.published
    return published
