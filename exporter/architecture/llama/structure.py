"""The structure of a model of the family, read from Hugging Face's config.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from ....engines.errors import UnsupportedModelError
from ....engines.manifest import MAX_LAYERS, MAX_TOKENS, MAX_WIDTH
from ..model_config import ConfigReader
from .members import MEMBERS, Member
from .rotation import RotarySpec, read_rotation

_DEFAULT_WINDOW = 4096  # of transformers' MistralConfig, Qwen2Config and Qwen3Config
_WINDOWED, _FULL = "sliding_attention", "full_attention"


class LlamaSpec(RotarySpec):
    """A ModelSpec of this family, with the family's own facts as fields."""

    ffn_dim: int = Field(ge=1, le=MAX_WIDTH)
    rms_norm_eps: float = Field(gt=0, allow_inf_nan=False)
    qkv_bias: bool = False
    output_bias: bool = Field(default=False, description="of the projection behind attention")
    mlp_bias: bool = False
    query_key_norm: bool = Field(default=False, description="an RMS norm of each head")


def read_structure(config: Mapping[str, Any], name: str, max_seq_len: int | None) -> LlamaSpec:
    """Return the structure that ``config`` (the content of config.json) describes.

    As in transformers' classes of the ``model_type``, including their defaults for missing fields.
    Dropout and initialisation only matter in training. Raises UnsupportedModelError with all
    reasons at once.
    """
    member = MEMBERS[config["model_type"]]
    reader = ConfigReader(config)
    positions = reader.size("max_position_embeddings", member.max_position_embeddings, MAX_TOKENS)
    num_layers = reader.size("num_hidden_layers", 32, MAX_LAYERS)
    vocab_size = reader.size("vocab_size", member.vocab_size, MAX_TOKENS)
    heads = _read_heads(reader, member)
    rotation = read_rotation(
        reader,
        heads["head_dim"],
        positions,
        member.rope_theta,
        partial=member.has_partial_rotation,
    )
    attention_bias = member.reads_attention_bias and reader.flag("attention_bias", default=False)
    token_ids = {
        key: reader.token_id(key, default, vocab_size) for key, default in member.token_ids.items()
    }
    reader.choice("hidden_act", ("silu",))
    reader.check_kind(member.classes)
    limits = {
        "attention to a sliding window is not supported, and longer texts would exceed it": (
            _window(reader, member, num_layers)
        ),
        "the rotary frequencies of longrope change in longer texts": (
            rotation["rope_original_length"] if rotation["rope_type"] == "longrope" else None
        ),
    }
    length = reader.length(max_seq_len, positions, limits)
    facts: dict[str, Any] = {
        **heads,
        **rotation,
        **token_ids,
        "num_layers": num_layers,
        "ffn_dim": reader.size("intermediate_size", member.intermediate_size, MAX_WIDTH),
        "tie_word_embeddings": reader.flag("tie_word_embeddings", default=False),
        "rms_norm_eps": reader.number("rms_norm_eps", 1e-6),
        "mlp_bias": member.reads_mlp_bias and reader.flag("mlp_bias", default=False),
    }
    if reader.problems:
        raise UnsupportedModelError(name, *reader.problems)
    return LlamaSpec(
        family=config["model_type"],
        name=name,
        vocab_size=vocab_size,
        max_position_embeddings=positions,
        max_seq_len=length,
        qkv_bias=member.has_qkv_bias or attention_bias,
        output_bias=attention_bias,
        query_key_norm=member.has_query_key_norm,
        **facts,
    )


def _read_heads(reader: ConfigReader, member: Member) -> dict[str, int]:
    """Return the hidden size and the numbers and width of heads."""
    hidden_size = reader.size("hidden_size", 4096, MAX_WIDTH)
    num_heads = reader.size("num_attention_heads", 32, MAX_WIDTH)
    default = num_heads
    if member.num_key_value_heads is not None and "num_key_value_heads" not in reader.config:
        default = member.num_key_value_heads
    num_kv_heads = reader.size("num_key_value_heads", default, MAX_WIDTH)
    if num_heads % num_kv_heads:
        reader.problems.append(
            f"num_attention_heads is {num_heads}; it must be a multiple of num_key_value_heads "
            f"{num_kv_heads}"
        )
    head_dim = reader.config.get("head_dim") or member.head_dim
    if head_dim is None and hidden_size % num_heads:
        reader.problems.append(
            f"num_attention_heads is {num_heads}; without head_dim it must divide hidden_size "
            f"{hidden_size}"
        )
    head_dim = reader.size(
        "head_dim", member.head_dim or max(1, hidden_size // num_heads), MAX_WIDTH
    )
    return {
        "hidden_size": hidden_size,
        "num_heads": num_heads,
        "num_kv_heads": num_kv_heads,
        "head_dim": head_dim,
    }


def _window(reader: ConfigReader, member: Member, num_layers: int) -> int | None:
    """Return the number of tokens that a token attends to, itself included; None if unlimited."""
    if member.window == "none" or reader.config.get("sliding_window", 0) is None:
        return None
    window = reader.size("sliding_window", _DEFAULT_WINDOW, MAX_TOKENS)
    if member.window == "all":
        return window
    named = reader.config.get("layer_types")
    if isinstance(named, list):
        unknown = sorted({str(each) for each in named} - {_WINDOWED, _FULL})
        if unknown:
            reader.problems.append(
                f"layer_types has {', '.join(unknown)}; allowed: {_FULL}, {_WINDOWED}"
            )
        return window if _WINDOWED in named else None
    first = reader.config.get("max_window_layers", 28)
    if not reader.flag("use_sliding_window", default=False) or first >= num_layers:
        return None
    return window
