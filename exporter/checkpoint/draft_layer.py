"""A draft layer as ``skipdec tune --draft-layer`` writes it: two files in a directory.

``draft_layer.safetensors`` has the tensors of one decoder layer under the names that a layer has in
the checkpoint, without what names the layer; ``draft_layer.json`` has a `DraftLayerFacts`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any, Literal

from pydantic import ConfigDict, Field, ValidationError

from ...engines.checking import FrozenModel, expanded
from ...engines.documents import read_json
from ...engines.errors import CheckpointError, UsageError
from ...engines.manifest import EngineKind, ModelSpec, Sha256
from ..architecture.architecture import engine_parameters
from .checkpoint import Checkpoint
from .formats import map_safetensors
from .hub import require_regular_files
from .reader import CheckpointReader, MappedReader

TENSORS_NAME = "draft_layer.safetensors"
FACTS_NAME = "draft_layer.json"


class DraftedModel(FrozenModel):
    """The model that a draft layer was trained for: its sizes and a digest of its weights."""

    model_config = ConfigDict(extra="ignore")

    hidden_size: int
    ffn_dim: int | None = Field(default=None, description="None: a family that has none")
    num_attention_heads: int
    num_hidden_layers: int
    vocab_size: int
    sha256: Sha256 = Field(description="content of all tensors, whatever files they are in")

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> DraftedModel:
        """Describe a checkpoint; reads and hashes every tensor once."""
        model = checkpoint.model
        return cls(
            hidden_size=model.hidden_size,
            ffn_dim=_ffn_dim(model),
            num_attention_heads=model.num_heads,
            num_hidden_layers=model.num_layers,
            vocab_size=model.vocab_size,
            sha256=checkpoint.source()["content"],
        )


class DraftLayerFacts(FrozenModel):
    """The content of draft_layer.json; ``training`` and ``acceptance`` are for people."""

    model_config = ConfigDict(extra="ignore")

    format: Literal[1] = 1
    behind: int = Field(
        description="E: a draft runs layers 0 … E - 1, then this one, then the head"
    )
    model: DraftedModel
    training: dict[str, Any] = Field(default_factory=dict)
    acceptance: dict[str, Any] = Field(default_factory=dict)


@dataclass(frozen=True)
class TrainedDraftLayer:
    """An opened draft layer. ``reader`` has its tensors under the names of the model's layer 0."""

    behind: int
    reader: CheckpointReader


def read_draft_layer(directory: Path, checkpoint: Checkpoint) -> TrainedDraftLayer:
    """Open the draft layer in ``directory`` and check that it belongs to ``checkpoint``.

    Raises UsageError for a directory without one, or one of another model, and CheckpointError for
    damaged files, with all problems of a file at once. Every tensor of the checkpoint is hashed.
    """
    directory = expanded(directory)
    require_regular_files(directory)
    missing = [name for name in (FACTS_NAME, TENSORS_NAME) if not (directory / name).is_file()]
    if missing:
        raise UsageError(
            str(directory),
            f"has no {' and no '.join(missing)}; allowed: a directory that 'skipdec tune "
            "--draft-layer' wrote",
        )
    facts = _read_facts(directory / FACTS_NAME)
    model = checkpoint.model
    tensors = map_safetensors(directory / TENSORS_NAME)
    prefix = layer_prefix(model)
    reader = MappedReader({prefix + name: tensor for name, tensor in tensors.items()})
    # Sizes are compared before weights, which take a pass over the whole checkpoint to hash.
    problems = [*_size_problems(facts, model), *_tensor_problems(reader, model, prefix)]
    if not problems and facts.model.sha256 != (seen := checkpoint.source()["content"]):
        problems = [
            f"was trained for weights of SHA-256 {facts.model.sha256[:12]}…; those of {model.name} "
            f"have {seen[:12]}…"
        ]
    if problems:
        advice = "pass the draft layer of this model, or train one: skipdec tune --draft-layer"
        raise UsageError(str(directory), *problems, advice)
    return TrainedDraftLayer(facts.behind, reader)


def layer_prefix(model: ModelSpec) -> str:
    """Return what the names of layer 0's tensors begin with, e.g. ``decoder.layers.0.``."""
    names = [
        source.split(".")
        for parameter in engine_parameters(EngineKind.LAYER, model, 0)
        for source in parameter.sources
    ]
    common = takewhile(lambda parts: len(set(parts)) == 1, zip(*names, strict=False))
    return "".join(f"{parts[0]}." for parts in common)


def _read_facts(path: Path) -> DraftLayerFacts:
    document = read_json(path, CheckpointError, remedy="train the draft layer again")
    try:
        return DraftLayerFacts.model_validate(document)
    except ValidationError as error:
        problems = [
            f"{'.'.join(map(str, item['loc'])) or 'the file'}: {item['msg']}"
            for item in error.errors()
        ]
        raise CheckpointError(str(path), *problems, "train the draft layer again") from error


def _size_problems(facts: DraftLayerFacts, model: ModelSpec) -> Iterator[str]:
    """Yield the differences between the model that the layer was trained for and ``model``."""
    trained = facts.model
    sizes = {
        "hidden_size": (trained.hidden_size, model.hidden_size),
        "ffn_dim": (trained.ffn_dim, _ffn_dim(model)),
        "num_attention_heads": (trained.num_attention_heads, model.num_heads),
        "num_hidden_layers": (trained.num_hidden_layers, model.num_layers),
        "vocab_size": (trained.vocab_size, model.vocab_size),
    }
    for name, (wanted, seen) in sizes.items():
        if wanted != seen:
            yield f"was trained for a model of {name} {wanted}; {model.name} has {seen}"
    if not 1 <= facts.behind < model.num_layers:
        yield (
            f"is behind {facts.behind} layers; allowed: 1 to {model.num_layers - 1}, as the model "
            f"has {model.num_layers}"
        )


def _tensor_problems(reader: CheckpointReader, model: ModelSpec, prefix: str) -> Iterator[str]:
    """Yield the tensors that are missing, unexpected, or of another shape."""
    expected = {
        source: parameter.source_shape(position)
        for parameter in engine_parameters(EngineKind.LAYER, model, 0)
        for position, source in enumerate(parameter.sources)
    }
    names = reader.names()
    for name in sorted(expected.keys() | names):
        label = name.removeprefix(prefix)
        if name not in names:
            yield f"{label} is missing from {TENSORS_NAME}"
        elif name not in expected:
            yield f"{label} is unexpected in a layer of this structure"
        elif reader.shape(name) != expected[name]:
            yield f"{label} is {list(reader.shape(name))}; expected {list(expected[name])}"


def _ffn_dim(model: ModelSpec) -> int | None:
    """Return the width of the feed-forward, a field of some families."""
    value = (model.model_extra or {}).get("ffn_dim")
    return value if isinstance(value, int) else None
