"""A model family as tuning sees it, and the registry of families.

A family that the exporter knows is tuned once it has a folder here and a line in
``TUNING_FAMILIES``. The exporter can't name its training model: it never imports calib.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ...engines.registry import Registry
from .fresh import TOKEN_IDS, FreshModelConfig

if TYPE_CHECKING:
    from .model import SkipModel

_FRESH_FAMILY = "opt"  # of a model that is given by its sizes

TUNING_FAMILIES = Registry("model_type", {"opt": "calib.tuning.opt.family:OPT"})
"""``TuningFamily`` objects by the ``model_type`` of Hugging Face's config.json."""


class TuningFamily(Protocol):
    """One model family. Nothing here imports torch but inside ``model_class``."""

    @property
    def adapter_targets(self) -> Sequence[str]:
        """The modules of a layer that LoRA adapts, by the last parts of their names."""
        ...

    def fresh_config(self, sizes: FreshModelConfig) -> dict[str, Any]:
        """config.json of a new model, without its vocabulary and token ids."""
        ...

    def model_class(self) -> type[SkipModel]:
        """The model that is trained."""
        ...


def tuning_family(model_type: str) -> TuningFamily:
    """The family that config.json names. Raises UsageError for one that can't be tuned."""
    family: TuningFamily = TUNING_FAMILIES.load(model_type)
    return family


def fresh_document(sizes: FreshModelConfig, vocab_size: int) -> dict[str, Any]:
    """The config.json of a new model with a vocabulary of ``vocab_size`` tokens."""
    config = sizes.base
    if config is None:
        config = tuning_family(_FRESH_FAMILY).fresh_config(sizes)
    return {**config, "vocab_size": vocab_size, **TOKEN_IDS}


def load_skip_model(directory: Path, model_type: str) -> SkipModel:
    """Read a checkpoint's weights as float32, whatever they are stored as."""
    import torch

    from .model import ATTENTION

    model: SkipModel = (
        tuning_family(model_type)
        .model_class()
        .from_pretrained(
            directory, dtype=torch.float32, attn_implementation=ATTENTION, local_files_only=True
        )
    )
    return model
