"""The exporter's interface to a model family, and the table of families.

A new family reads config.json, describes its layers in a ``decoder.Decoder``, and has a line in
``ARCHITECTURES``. Its engines are of the kinds in ``engines.manifest``. They exchange hidden states
[B, S, E], and each layer has a KV cache [B, N, T, D].
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ...engines.errors import choice
from ...engines.importing import load
from ...engines.manifest import EngineKind, FloatType, ModelSpec
from .decoder import Decoder, Rotation
from .signature import Signature, decoder_signature
from .weights import Parameter

ARCHITECTURES: Mapping[str, str] = {
    "opt": "exporter.architecture.opt:OPT",
    "llama": "exporter.architecture.llama.llama:LLAMA",
    "mistral": "exporter.architecture.llama.llama:LLAMA",
    "qwen2": "exporter.architecture.llama.llama:LLAMA",
    "qwen3": "exporter.architecture.llama.llama:LLAMA",
    "phi3": "exporter.architecture.llama.llama:LLAMA",
    "granite": "exporter.architecture.llama.llama:LLAMA",
    "smollm3": "exporter.architecture.llama.llama:LLAMA",
    "olmo2": "exporter.architecture.llama.llama:LLAMA",
}
"""Import path of each ``Architecture``, by the ``model_type`` of Hugging Face's config.json."""


@dataclass(frozen=True)
class Architecture:
    """One model family. Only ``reference_model`` imports torch.

    ``spec_from_config`` reads config.json, given the model's name and any ``max_seq_len`` (see
    ``model_config.model_spec``); ``decoder`` is the model as data. ``reference_model`` returns
    Hugging Face's causal language model with parameters on the meta device. Buffers that a
    checkpoint does not store, such as rotary frequencies, must have their data. Called with
    input_ids int64 [B, S], it returns an object with ``logits`` [B, S, V]. Its state_dict has a
    checkpoint's names, possibly prefixed by ``model.``.
    """

    spec_from_config: Callable[[Mapping[str, Any], str, int | None], ModelSpec]
    decoder: Callable[[ModelSpec], Decoder]
    reference_model: Callable[[ModelSpec], Any]


def family_architecture(model_type: str) -> Architecture:
    """Return a family. Raises UsageError, listing the families, for an unknown ``model_type``."""
    architecture: Architecture = load(choice(ARCHITECTURES, model_type, "model_type"))
    return architecture


def decoder_of(model: ModelSpec) -> Decoder:
    """Return ``model`` as data."""
    return family_architecture(model.family).decoder(model)


def engine_parameters(
    kind: EngineKind, model: ModelSpec, layer_index: int | None = None
) -> tuple[Parameter, ...]:
    """Return all parameters of one engine; ``layer_index`` must be set exactly for a layer."""
    assert (layer_index is not None) == (kind is EngineKind.LAYER), (kind, layer_index)
    if kind is EngineKind.CANDIDATES:
        return ()
    return decoder_of(model).parameters(kind, layer_index)


def kind_parameters(kind: EngineKind, model: ModelSpec) -> tuple[Parameter, ...]:
    """Return the parameters of an engine of ``kind``: for layers, those of the first."""
    return engine_parameters(kind, model, 0 if kind is EngineKind.LAYER else None)


def quantized_parameters(kind: EngineKind, model: ModelSpec) -> tuple[str, ...]:
    """Return the weights of an engine's products that may be quantised, in execution order.

    All layers use the same names.
    """
    return tuple(each.name for each in kind_parameters(kind, model) if each.is_product)


def expected_tensors(model: ModelSpec) -> dict[str, tuple[int, ...]]:
    """Return the shape of every tensor that a checkpoint of ``model`` must have, by name."""
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
    """Return a canonical graph's signature; ``dtype`` is that of hidden states and KV cache."""
    rotates = isinstance(decoder_of(model).positions, Rotation)
    return decoder_signature(kind, model, dtype, rotates=rotates)


def short_names() -> tuple[str, ...]:
    """Return the last parts of all hub ids: ``opt-125m`` ..."""
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


@cache
def _published() -> Mapping[str, Mapping[str, Any]]:
    """Return config.json of each published checkpoint by hub id: shared fields and its own ones."""
    table = json.loads(Path(__file__).with_name("published.json").read_text(encoding="utf-8"))
    return {
        name: table["like"][model.pop("like")] | model for name, model in table["models"].items()
    }
