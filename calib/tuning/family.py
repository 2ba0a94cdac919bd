"""The tuning interface of a model family, and the registry of families.

To tune another family that the exporter knows, add a folder here and a line in ``TUNING_FAMILIES``.
The exporter can't name its training model, as it never imports calib.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ...engines.registry import Registry
from .fresh import TOKEN_IDS, FreshModelConfig

if TYPE_CHECKING:
    from .model import SkipModel

_FRESH_FAMILY = "opt"  # for models given by their sizes

TUNING_FAMILIES = Registry("model_type", {"opt": "calib.tuning.opt.family:OPT"})
"""``TuningFamily`` objects by the ``model_type`` of Hugging Face's config.json."""


class TuningFamily(Protocol):
    """One model family. Only ``model_class`` may import torch."""

    @property
    def adapter_targets(self) -> Sequence[str]:
        """Modules of a layer that LoRA adapts, by the last parts of their names."""
        ...

    def fresh_config(self, sizes: FreshModelConfig) -> dict[str, Any]:
        """Return config.json of a new model, without its vocabulary and token ids."""
        ...

    def model_class(self) -> type[SkipModel]:
        """Return the class of the model to train."""
        ...


def tuning_family(model_type: str) -> TuningFamily:
    """Return the family that config.json names. Raises UsageError if it can't be tuned."""
    family: TuningFamily = TUNING_FAMILIES.load(model_type)
    return family


def fresh_document(sizes: FreshModelConfig, vocab_size: int) -> dict[str, Any]:
    """Return config.json of a new model with a vocabulary of ``vocab_size`` tokens."""
    config = sizes.base
    if config is None:
        config = tuning_family(_FRESH_FAMILY).fresh_config(sizes)
    return {**config, "vocab_size": vocab_size, **TOKEN_IDS}


def load_skip_model(directory: Path, model_type: str) -> SkipModel:
    """Read a checkpoint's weights as float32, whatever their stored type."""
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
