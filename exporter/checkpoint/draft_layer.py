"""A draft layer as ``skipdec tune --draft-layer`` writes it: two files in a directory.

``draft_layer.safetensors`` has these tensors. States of width E are read at three depths, and N
tokens are scored:

    states.norms.I.weight [E]    states.product.weight [E, 3 E]   make one state of the I = 0, 1, 2
    entry.norms.I.weight [E]     entry.product.weight [E, 2 E]    join I = 0 (embedding), 1 (state)
    layer.*                      a layer's tensors, named as in the checkpoint after its number
    head.*                       the head's tensors, named as there without a leading "model.",
                                 with N rows of the vocabulary

``draft_layer.json`` contains a `DraftLayerFacts`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Any, Literal

from pydantic import ConfigDict, Field

from ...engines.bundle.files import file_record
from ...engines.checking import FrozenModel, expanded
from ...engines.documents import read_json
from ...engines.errors import CheckpointError, UsageError
from ...engines.manifest import NUM_JOINED, EngineKind, ModelSpec, Sha256
from ..architecture.architecture import kind_parameters
from .checkpoint import Checkpoint
from .formats import map_safetensors
from .hub import require_regular_files
from .reader import CheckpointReader, MappedReader, StoredTensor

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
    def of(cls, model: ModelSpec, sha256: str) -> DraftedModel:
        """Describe ``model``, whose tensors have the digest ``sha256``."""
        return cls(
            hidden_size=model.hidden_size,
            ffn_dim=_ffn_dim(model),
            num_attention_heads=model.num_heads,
            num_hidden_layers=model.num_layers,
            vocab_size=model.vocab_size,
            sha256=sha256,
        )


class DraftLayerFacts(FrozenModel):
    """The content of draft_layer.json; ``training`` and ``acceptance`` are for people."""

    model_config = ConfigDict(extra="ignore")

    format: Literal[2] = 2
    reads: tuple[int, ...] = Field(
        min_length=3,
        max_length=3,
        description="how many of the model's layers have run where states are read, ascending",
    )
    token_ids: tuple[int, ...] = Field(
        min_length=1, description="the tokens that its head scores, ascending"
    )
    model: DraftedModel
    training: dict[str, Any] = Field(default_factory=dict)
    acceptance: dict[str, Any] = Field(default_factory=dict)


@dataclass(frozen=True)
class TrainedDraftLayer:
    """An opened draft layer; ``reads`` and ``token_ids`` as in `DraftLayerFacts`.

    ``model`` is the structure by which `kind_parameters` names the parameters of the draft's
    engines. It differs from the drafted model in its head, which is untied and scores only these
    tokens, and in layer 0, which rotates if the last layer does. ``reader`` has their tensors,
    those of the layer under the names of layer 0. ``path`` is their file.
    """

    reads: tuple[int, ...]
    token_ids: tuple[int, ...]
    model: ModelSpec
    reader: CheckpointReader
    path: Path

    @property
    def digest(self) -> str:
        """The SHA-256 of the file of tensors."""
        return file_record(self.path.parent, self.path.name).sha256


def read_draft_layer(directory: Path, checkpoint: Checkpoint) -> TrainedDraftLayer:
    """Open the draft layer in ``directory`` and check that it belongs to ``checkpoint``.

    Raises UsageError if the directory has no draft layer or one for another model, and
    CheckpointError for damaged files, with all problems of a file at once. Hashes every tensor of
    the checkpoint.
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
    path, remedy = directory / FACTS_NAME, "train the draft layer again"
    document = read_json(path, CheckpointError, remedy=remedy)
    facts = DraftLayerFacts.parse(document, CheckpointError, str(path), remedy)
    model = checkpoint.model
    own: dict[str, Any] = {"vocab_size": len(facts.token_ids), "tie_word_embeddings": False}
    if rotated := (model.model_extra or {}).get("rotated_layers"):
        own["rotated_layers"] = rotated[-1] * model.num_layers
    drafted = model.model_copy(update=own)
    file = directory / TENSORS_NAME
    tensors = map_safetensors(file)
    # Compare sizes first, because hashing the weights reads the whole checkpoint.
    problems = list(_size_problems(facts, model)) or list(_tensor_problems(tensors, drafted))
    if not problems and facts.model.sha256 != (seen := checkpoint.content):
        problems = [
            f"was trained for weights of SHA-256 {facts.model.sha256[:12]}…; those of {model.name} "
            f"have {seen[:12]}…"
        ]
    if problems:
        advice = "pass the draft layer of this model, or train one: skipdec tune --draft-layer"
        raise UsageError(str(directory), *problems, advice)
    read = {source: tensors[label] for label, source, _ in draft_tensors(drafted)}
    return TrainedDraftLayer(facts.reads, facts.token_ids, drafted, MappedReader(read), file)


def draft_tensors(model: ModelSpec) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    """Yield each tensor of a draft layer's file: its name there, its source name, and its shape.

    ``model`` is that of a `TrainedDraftLayer`.
    """
    prefix = layer_prefix(model)
    for kind in (*NUM_JOINED, EngineKind.LAYER, EngineKind.HEAD):
        for parameter in kind_parameters(kind, model):
            for position, source in enumerate(parameter.sources):
                label = source
                if kind is EngineKind.LAYER:
                    label = f"layer.{source.removeprefix(prefix)}"
                elif kind is EngineKind.HEAD:
                    label = f"head.{source}"
                yield label, source, parameter.source_shape(position)


def layer_prefix(model: ModelSpec) -> str:
    """Return the prefix of the names of layer 0's tensors, e.g. ``decoder.layers.0.``."""
    names = [
        source.split(".")
        for parameter in kind_parameters(EngineKind.LAYER, model)
        for source in parameter.sources
    ]
    common = takewhile(lambda parts: len(set(parts)) == 1, zip(*names, strict=False))
    return "".join(f"{parts[0]}." for parts in common)


def _size_problems(facts: DraftLayerFacts, model: ModelSpec) -> Iterator[str]:
    """Yield the differences between the model that the layer was trained for and ``model``."""
    given = DraftedModel.of(model, facts.model.sha256)
    for name in DraftedModel.model_fields:
        wanted, seen = getattr(facts.model, name), getattr(given, name)
        if wanted != seen:
            yield f"was trained for a model of {name} {wanted}; {model.name} has {seen}"
    reads, ids = facts.reads, facts.token_ids
    if list(reads) != sorted(reads) or reads[0] < 1 or reads[-1] > model.num_layers:
        yield (
            f"reads states after {', '.join(map(str, reads))} layers; allowed: ascending, 1 to "
            f"{model.num_layers}"
        )
    is_ascending = all(token < later for token, later in pairwise(ids))
    if not is_ascending or ids[0] < 0 or ids[-1] >= model.vocab_size:
        yield f"has token_ids that are not ascending and below the vocabulary's {model.vocab_size}"


def _tensor_problems(tensors: Mapping[str, StoredTensor], model: ModelSpec) -> Iterator[str]:
    """Yield the tensors that are missing, unexpected, or of another shape."""
    expected = {label: shape for label, _, shape in draft_tensors(model)}
    for name in sorted(expected.keys() | tensors.keys()):
        if name not in tensors:
            yield f"{name} is missing from {TENSORS_NAME}"
        elif name not in expected:
            yield f"{name} is unexpected in a draft layer of this model"
        elif (shape := tensors[name].data.shape) != expected[name]:
            yield f"{name} is {list(shape)}; expected {list(expected[name])}"


def _ffn_dim(model: ModelSpec) -> int | None:
    """Return the width of the feed-forward, a field of some families."""
    value = (model.model_extra or {}).get("ffn_dim")
    return value if isinstance(value, int) else None
