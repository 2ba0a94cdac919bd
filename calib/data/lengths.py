"""The maximum length of a checkpoint's texts, by the same rule in tune and ngrams."""

from __future__ import annotations

from ...engines.errors import UsageError
from ...engines.manifest import ModelSpec
from ...exporter.architecture.model_config import DEFAULT_MAX_SEQ_LEN
from .data import DataConfig

_OWN_LENGTH = 512  # of texts that the model writes itself, by default


def opened_length(max_length: int | None) -> int | None:
    """Return the ``max_seq_len`` with which to open a model for texts of ``max_length`` tokens.

    None is the default, as in an export; only a longer ``max_length`` takes its place.
    """
    is_long = max_length is not None and max_length > DEFAULT_MAX_SEQ_LEN
    return max_length if is_long else None


def text_length(max_length: int | None, data: DataConfig, model: ModelSpec) -> int:
    """Return the maximum tokens of a text, prompt included: ``max_length`` or its default.

    ``model`` was opened with `opened_length`. Raises UsageError if it takes only shorter texts.
    """
    most = model.max_seq_len
    longest = max_length or (most if data.own_texts is None else min(most, _OWN_LENGTH))
    if longest > most:
        raise UsageError("max_length", f"is {longest}; allowed: at most the model's {most}")
    return longest
