"""What tuning needs to know of each model family, and the sizes of new models.

To tune another of the exporter's families, add a model to ``skip_models`` and a line to
``TUNING_FAMILIES``. The exporter can't name training models, because it never imports calib.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field

from ...engines.checking import ValidatedConfig
from ...engines.errors import choice, did_you_mean
from ...exporter.checkpoint.foreign import library_reads

if TYPE_CHECKING:
    from .model import SkipModel

_FFN_MULTIPLE = 32  # the block of int4 weights


class FreshModelConfig(ValidatedConfig):
    """Sizes of a new model of ``family``, a ``model_type``.

    Defaults: ``kv_heads`` equals ``heads``, ``head_dim`` is the width divided by the heads, and
    ``ffn`` is as wide as the family makes it.
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


def _learned_positions(sizes: FreshModelConfig) -> dict[str, Any]:
    """Return the fields of a pre-norm OPT with tied embeddings of the width of its layers."""
    return {
        "word_embed_proj_dim": sizes.width,
        "ffn_dim": sizes.ffn or 4 * sizes.width,
        "dropout": sizes.dropout,
        "layerdrop": 0.0,
    }


def _rotary(sizes: FreshModelConfig) -> dict[str, Any]:
    """Return the fields of a relative of LLaMA with a tied head.

    Without ``ffn``, the feed-forward's three matrices have as many weights as OPT's two: 8/3 of
    the width, rounded up to a multiple of 32. Width 256 gives 704.
    """
    ffn = -(-8 * sizes.width // (3 * _FFN_MULTIPLE)) * _FFN_MULTIPLE
    return {
        "num_key_value_heads": sizes.kv_heads or sizes.heads,
        "head_dim": sizes.head_size,
        "intermediate_size": sizes.ffn or ffn,
        "tie_word_embeddings": True,
    }


@dataclass(frozen=True)
class TuningFamily:
    """Tunes the models of a family; ``architecture`` is its class in transformers.

    ``adapter_targets``: the modules of a layer that LoRA adapts, by the last parts of their names.
    ``optional_sizes``: the optional fields of `FreshModelConfig` that apply to the family.
    ``fields`` returns fields of config.json that not all families have.
    """

    architecture: str
    adapter_targets: Sequence[str] = (
        *("q_proj", "k_proj", "v_proj", "o_proj"),
        *("gate_proj", "up_proj", "down_proj"),
    )
    optional_sizes: Sequence[str] = ("kv_heads", "head_dim", "ffn", "positions")
    fields: Callable[[FreshModelConfig], dict[str, Any]] = _rotary

    def fresh_config(self, sizes: FreshModelConfig) -> dict[str, Any]:
        """Return config.json of a new model, without vocabulary and token ids."""
        return {
            "model_type": sizes.family,
            "architectures": [self.architecture],
            "num_hidden_layers": sizes.layers,
            "hidden_size": sizes.width,
            "num_attention_heads": sizes.heads,
            "max_position_embeddings": sizes.positions,
            **self.fields(sizes),
        }


TUNING_FAMILIES: Mapping[str, TuningFamily] = {
    "opt": TuningFamily(
        "OPTForCausalLM",
        adapter_targets=("q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2"),
        optional_sizes=("ffn", "positions", "dropout"),
        fields=_learned_positions,
    ),
    "llama": TuningFamily("LlamaForCausalLM"),
    "mistral": TuningFamily("MistralForCausalLM"),
    "qwen2": TuningFamily("Qwen2ForCausalLM"),
    "qwen3": TuningFamily("Qwen3ForCausalLM"),
    "phi3": TuningFamily(
        "Phi3ForCausalLM", adapter_targets=("qkv_proj", "o_proj", "gate_up_proj", "down_proj")
    ),
    "granite": TuningFamily("GraniteForCausalLM"),
    "smollm3": TuningFamily("SmolLM3ForCausalLM"),
    "olmo2": TuningFamily("Olmo2ForCausalLM"),
}
"""Families by the ``model_type`` of Hugging Face's config.json."""


def tuning_family(model_type: str) -> TuningFamily:
    """Return the family that config.json names. Raises UsageError if it can't be tuned."""
    return choice(TUNING_FAMILIES, model_type, "model_type")


def load_skip_model(directory: Path, model_type: str) -> SkipModel:
    """Load a checkpoint with float32 weights, whatever their stored type."""
    import torch

    from .model import ATTENTION
    from .skip_models import MODEL_CLASSES

    with library_reads(str(directory), "can't be read by transformers"):
        model: SkipModel = MODEL_CLASSES[model_type].from_pretrained(
            directory, dtype=torch.float32, attn_implementation=ATTENTION, local_files_only=True
        )
    return model
