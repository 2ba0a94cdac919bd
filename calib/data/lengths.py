"""The maximum length of a checkpoint's texts, by the same rule in tune and ngrams."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from ...engines.errors import UsageError
from ...engines.manifest import ModelSpec
from ...exporter.checkpoint.checkpoint import Checkpoint, open_checkpoint, read_model
from ...exporter.checkpoint.hub import CheckpointDirectory
from ...exporter.config import CheckpointSource
from .data import DataConfig

_OWN_LENGTH = 512  # of texts that the model writes itself, by default


def open_with_room(model: str, max_length: int | None) -> Checkpoint:
    """Open a checkpoint with room for ``max_length`` tokens; see `with_room`."""
    checkpoint = open_checkpoint(CheckpointSource(model=model))
    spec, path = checkpoint.model, checkpoint.directory
    assert path is not None  # only random weights have no directory
    read = partial(read_model, CheckpointDirectory(spec.name, path, checkpoint.revision))
    return replace(checkpoint, model=with_room(spec, read, max_length))


def with_room(
    model: ModelSpec, read: Callable[[int], ModelSpec], max_length: int | None
) -> ModelSpec:
    """Return the default structure ``model``, extended to ``max_length`` tokens if they fit.

    As in an export, texts have at most DEFAULT_MAX_SEQ_LEN tokens by default; with ``max_length``,
    at most as many as the model has positions. ``read`` reads the structure for a length and raises
    UnsupportedModelError for a length that exceeds the model's attention window.
    """
    positions = model.max_position_embeddings
    if max_length is None or not model.max_seq_len < max_length <= positions:
        return model
    return model.model_copy(update={"max_seq_len": read(max_length).max_seq_len})


def text_length(max_length: int | None, data: DataConfig, model: ModelSpec) -> int:
    """Return the maximum tokens of a text, prompt included: ``max_length`` or its default.

    ``model`` comes from `with_room`. Raises UsageError if it has fewer positions.
    """
    most = model.max_seq_len
    longest = max_length or (most if data.own_texts is None else min(most, _OWN_LENGTH))
    if longest > most:
        positions = model.max_position_embeddings
        raise UsageError("max_length", f"is {longest}; allowed: at most the model's {positions}")
    return longest
