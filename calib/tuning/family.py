"""The tuning interface of a model family, and the table of families.

To tune another family that the exporter knows, describe it in ``families`` and add a line in
``TUNING_FAMILIES``. The exporter can't name its training model, as it never imports calib.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from pydantic import Field

from ...engines.checking import ValidatedConfig
from ...engines.errors import choice, did_you_mean
from ...engines.importing import load
from ...exporter.checkpoint.foreign import library_reads

if TYPE_CHECKING:
    from .model import SkipModel

TUNING_FAMILIES: Mapping[str, str] = {
    "opt": "calib.tuning.families.families:OPT",
    "llama": "calib.tuning.families.families:LLAMA",
    "mistral": "calib.tuning.families.families:MISTRAL",
    "qwen2": "calib.tuning.families.families:QWEN2",
    "qwen3": "calib.tuning.families.families:QWEN3",
    "phi3": "calib.tuning.families.families:PHI3",
    "granite": "calib.tuning.families.families:GRANITE",
    "smollm3": "calib.tuning.families.families:SMOLLM3",
    "olmo2": "calib.tuning.families.families:OLMO2",
}
"""Where each ``TuningFamily`` is, by the ``model_type`` of Hugging Face's config.json."""


class FreshModelConfig(ValidatedConfig):
    """Sizes of a new model of ``family``, which is a ``model_type``.

    ``kv_heads`` None: as many as ``heads``. ``head_dim`` None: the width divided by the heads.
    ``ffn`` None: as wide as the family makes it.
    """

    family: str = "opt"
    layers: int = Field(ge=1)
    width: int = Field(ge=8)
    heads: int = Field(ge=1)
    kv_heads: int | None = Field(default=None, ge=1)
    head_dim: int | None = Field(default=None, ge=1)
    ffn: int | None = Field(default=None, ge=1)
    positions: int = Field(default=256, ge=2)
    dropout: float = Field(default=0.0, ge=0, lt=1)

    @property
    def head_size(self) -> int:
        """Width of a head: ``head_dim`` or its default, rounded down."""
        return self.head_dim or self.width // self.heads

    def _problems(self) -> Iterator[str]:
        if self.head_dim is None and self.width % (8 * self.heads):
            yield (
                f"`width` is {self.width} and `heads` is {self.heads}; allowed: heads whose width "
                "is a multiple of 8, as the exporter requires"
            )
        if self.head_dim is not None and self.head_dim % 8:
            yield f"`head_dim` is {self.head_dim}; allowed: a multiple of 8"
        if self.kv_heads is not None and self.heads % self.kv_heads:
            yield f"`kv_heads` is {self.kv_heads}; allowed: a divisor of `heads`, {self.heads}"
        if self.family not in TUNING_FAMILIES:
            meant = did_you_mean(self.family, TUNING_FAMILIES)
            yield f"`family` is {self.family!r}; {meant}allowed: {', '.join(TUNING_FAMILIES)}"
            return
        taken = tuning_family(self.family).optional_sizes
        for name in ("kv_heads", "head_dim", "ffn", "positions", "dropout"):
            if name in self.model_fields_set and name not in taken:
                yield f"`{name}` is not a size of {self.family}; allowed: {', '.join(taken)}"


class TuningFamily(Protocol):
    """One model family. Only ``model_class`` may import torch."""

    @property
    def adapter_targets(self) -> Sequence[str]:
        """Modules of a layer that LoRA adapts, by the last parts of their names."""
        ...

    @property
    def optional_sizes(self) -> Sequence[str]:
        """Fields of `FreshModelConfig` that a new model may be given beside those required."""
        ...

    def fresh_config(self, sizes: FreshModelConfig) -> dict[str, Any]:
        """Return config.json of a new model, without its vocabulary and token ids."""
        ...

    def model_class(self) -> type[SkipModel]:
        """Return the class of the model to train."""
        ...


def tuning_family(model_type: str) -> TuningFamily:
    """Return the family that config.json names. Raises UsageError if it can't be tuned."""
    family: TuningFamily = load(choice(TUNING_FAMILIES, model_type, "model_type"))
    return family


def load_skip_model(directory: Path, model_type: str) -> SkipModel:
    """Read a checkpoint's weights as float32, whatever their stored type."""
    import torch

    from .model import ATTENTION

    with library_reads(str(directory), "can't be read by transformers"):
        model: SkipModel = (
            tuning_family(model_type)
            .model_class()
            .from_pretrained(
                directory, dtype=torch.float32, attn_implementation=ATTENTION, local_files_only=True
            )
        )
    return model
