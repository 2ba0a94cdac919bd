"""The structure of a model of the family, read from Hugging Face's config.json."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import Field

from ....engines.errors import UnsupportedModelError, shown
from ....engines.manifest import MAX_LAYERS, MAX_TOKENS, MAX_WIDTH, ModelSpec
from ..model_config import ConfigReader
from .members import MEMBERS, HeadNorms, Member
from .rotation import RotarySpec, read_rotation

_WINDOWED, _FULL = "sliding_attention", "full_attention"
_MULTIPLIERS = (
    "embedding_multiplier",
    "attention_multiplier",
    "residual_multiplier",
    "logits_scaling",
)
_ROTATION_INTERVAL = 4  # SmolLM3: every fourth layer does not rotate


class LlamaSpec(RotarySpec):
    """A ModelSpec of this family, with the family's own facts as fields."""

    ffn_dim: int = Field(ge=1, le=MAX_WIDTH)
    rms_norm_eps: float = Field(gt=0)
    qkv_bias: bool = False
    output_bias: bool = Field(default=False, description="of the projection after attention")
    mlp_bias: bool = False
    head_norms: HeadNorms = "none"
    norms_behind: bool | None = Field(
        default=None, description="norms follow attention and feed-forward; None: precede them"
    )
    packs_weights: bool | None = Field(
        default=None, description="the checkpoint packs queries, keys, values, and gate, up"
    )
    rotated_layers: str | None = Field(
        default=None,
        pattern="^[01]+$",
        description="a digit per layer, 0: no rotation; None: all rotate",
    )
    embedding_multiplier: float | None = Field(default=None, gt=0)
    attention_multiplier: float | None = Field(
        default=None, gt=0, description="of scores; None: 1 / sqrt(head_dim)"
    )
    residual_multiplier: float | None = Field(default=None, gt=0)
    logits_scaling: float | None = Field(default=None, gt=0, description="the divisor of logits")


def read_structure(config: Mapping[str, Any], name: str, max_seq_len: int | None) -> ModelSpec:
    """Return the structure that ``config`` (the content of config.json) describes.

    Follows transformers' classes of the ``model_type``, including their defaults for missing
    fields. Dropout and initialisation only matter in training. Raises UnsupportedModelError with
    all reasons at once.
    """
    member = MEMBERS[config["model_type"]]
    reader, defaults = ConfigReader(config), member.defaults
    positions = reader.size(
        "max_position_embeddings", defaults["max_position_embeddings"], MAX_TOKENS
    )
    num_layers = reader.size("num_hidden_layers", defaults["num_hidden_layers"], MAX_LAYERS)
    vocab_size = reader.size("vocab_size", defaults["vocab_size"], MAX_TOKENS)
    heads = _read_heads(reader, member)
    rotation = read_rotation(
        reader,
        heads["head_dim"],
        positions,
        defaults["rope_theta"],
        partial=member.has_partial_rotation,
    )
    facts: dict[str, Any] = {
        **heads,
        **rotation,
        **_read_biases(reader, member),
        **_read_multipliers(reader, member),
        "num_layers": num_layers,
        "ffn_dim": reader.size("intermediate_size", defaults["intermediate_size"], MAX_WIDTH),
        "rms_norm_eps": reader.number("rms_norm_eps", defaults["rms_norm_eps"]),
        "head_norms": member.head_norms,
        "norms_behind": member.norms_behind or None,
        "packs_weights": member.packs_weights or None,
        "rotated_layers": _read_rotated_layers(reader, member, num_layers),
        "tie_word_embeddings": reader.flag("tie_word_embeddings", defaults["tie_word_embeddings"]),
    }
    for key in ("bos_token_id", "eos_token_id", "pad_token_id"):
        facts[key] = reader.token_id(key, defaults[key], vocab_size)
    reader.choice("hidden_act", ("silu",))
    reader.check_kind(member.classes)
    is_longrope = rotation["rope_type"] == "longrope"
    limits = {
        "attention to a sliding window is not supported, and longer texts would exceed it": (
            _window(reader, member, num_layers)
        ),
        "the rotary frequencies of longrope change in longer texts": (
            rotation["rope_original_length"] if is_longrope else None
        ),
    }
    length = reader.length(max_seq_len, positions, limits)
    reader.problems += _rotation_problems(facts, member)
    if reader.problems:
        raise UnsupportedModelError(name, *reader.problems)
    spec = LlamaSpec(
        family=config["model_type"],
        name=name,
        vocab_size=vocab_size,
        max_position_embeddings=positions,
        max_seq_len=length,
        **facts,
    )
    if problem := spec.frequency_problem():
        raise UnsupportedModelError(name, problem)
    return spec.model_spec()


def _rotation_problems(facts: Mapping[str, Any], member: Member) -> Iterator[str]:
    """Yield what heads and layers have that the rotation does not support."""
    quotient = facts["hidden_size"] // facts["num_heads"]
    is_partial_longrope = member.has_partial_rotation and facts["rope_type"] == "longrope"
    if is_partial_longrope and facts["head_dim"] != quotient:
        yield (
            f"head_dim is {facts['head_dim']}; allowed with longrope: {quotient}, hidden_size by "
            "num_attention_heads, as transformers takes it for this model"
        )
    if facts["rotated_layers"] is not None and facts.get("rope_scale", 1.0) != 1:
        yield (
            "some layers do not rotate, and the rotary scaling has a factor of cosines, which "
            "these layers would get too; choose another rope_type"
        )


def _read_heads(reader: ConfigReader, member: Member) -> dict[str, int]:
    """Return the hidden size and the numbers and width of heads."""
    config, defaults = reader.config, member.defaults
    hidden_size = reader.size("hidden_size", defaults["hidden_size"], MAX_WIDTH)
    num_heads = reader.size("num_attention_heads", defaults["num_attention_heads"], MAX_WIDTH)
    kv_default = None if "num_key_value_heads" in config else defaults["num_key_value_heads"]
    num_kv_heads = reader.size(
        "num_key_value_heads", kv_default or num_heads, MAX_WIDTH, may_be_null=True
    )
    if num_heads % num_kv_heads and reader.accepted("num_attention_heads", "num_key_value_heads"):
        reader.problems.append(
            f"num_attention_heads is {num_heads}; it must be a multiple of num_key_value_heads "
            f"{num_kv_heads}"
        )
    has_width = bool(config.get("head_dim") or defaults["head_dim"])
    if not reader.accepted("hidden_size", "num_attention_heads"):
        hidden_size, num_heads = defaults["hidden_size"], defaults["num_attention_heads"]
    elif hidden_size % num_heads and (member.heads_divide_size or not has_width):
        reader.problems.append(
            f"num_attention_heads is {num_heads}; {'' if has_width else 'without head_dim '}it "
            f"must divide hidden_size {hidden_size}"
        )
    quotient = max(1, hidden_size // num_heads)
    return {
        "hidden_size": hidden_size,
        "num_heads": num_heads,
        "num_kv_heads": num_kv_heads,
        "head_dim": reader.size(
            "head_dim", defaults["head_dim"] or quotient, MAX_WIDTH, may_be_null=True
        ),
    }


def _read_biases(reader: ConfigReader, member: Member) -> dict[str, bool]:
    flags = {flag: reader.flag(flag, default=False) for flag in member.flags}
    attention_bias = flags.get("attention_bias", False)
    return {
        "qkv_bias": member.has_qkv_bias or attention_bias,
        "output_bias": attention_bias,
        "mlp_bias": flags.get("mlp_bias", False),
    }


def _read_multipliers(reader: ConfigReader, member: Member) -> dict[str, float]:
    keys = _MULTIPLIERS if member.has_multipliers else ()
    return {key: reader.number(key, 1.0) for key in keys}


def _read_rotated_layers(reader: ConfigReader, member: Member, num_layers: int) -> str | None:
    """Return a digit per layer, 1 if it rotates, else 0; None if all rotate."""
    if not (member.skips_rotation and reader.accepted("num_hidden_layers")):
        return None
    listed = reader.config.get("no_rope_layers")  # 1 for a layer that rotates, despite its name
    if listed is None:
        interval = reader.size("no_rope_layer_interval", _ROTATION_INTERVAL, MAX_LAYERS)
        listed = [int((index + 1) % interval != 0) for index in range(num_layers)]
    is_list = isinstance(listed, list) and len(listed) >= num_layers
    if not is_list or any(each not in (0, 1) for each in listed):
        reader.problems.append(
            f"no_rope_layers is {listed!r:.80}; allowed: 0 or 1 for each of {num_layers} layers"
        )
        return None
    digits = "".join(str(int(each)) for each in listed[:num_layers])
    return digits if "0" in digits else None


def _read_layer_types(reader: ConfigReader, num_layers: int) -> list[str] | None:
    """Return the kind of attention of each layer; None if config.json does not list them."""
    named = reader.config.get("layer_types")
    if named is None or not reader.accepted("num_hidden_layers"):
        return None
    is_list = isinstance(named, list) and len(named) == num_layers
    if not is_list or any(each not in (_FULL, _WINDOWED) for each in named):
        reader.problems.append(
            f"layer_types is {shown(named)}; allowed: {_FULL} or {_WINDOWED} for each of "
            f"{num_layers} layers"
        )
        return None
    return list(named)


def _window(reader: ConfigReader, member: Member, num_layers: int) -> int | None:
    """Return the number of tokens that a token attends to, itself included; None if unlimited."""
    layer_types = _read_layer_types(reader, num_layers)
    default = member.defaults["sliding_window"]
    if member.window == "none" or reader.config.get("sliding_window", default) is None:
        return None
    window = reader.size("sliding_window", default or MAX_TOKENS, MAX_TOKENS)
    if member.window == "all":
        return window
    if layer_types is not None:
        return window if _WINDOWED in layer_types else None
    if not reader.flag("use_sliding_window", default=False):
        return None
    first = reader.config.get("max_window_layers", 28)
    some = member.skips_rotation or not isinstance(first, int) or first < num_layers
    return window if some else None
