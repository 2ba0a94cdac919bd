"""From a Hugging Face ``config.json`` to the ModelSpec that decides which graphs are built."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

from ...engines.errors import UnsupportedModelError
from ...engines.manifest import ModelSpec

Activation = Literal["relu", "gelu"]

_ACTIVATIONS: tuple[Activation, ...] = get_args(Activation)
_ARCHITECTURES = ("OPTForCausalLM", "OPTModel")
_MISSING = object()

# What transformers' OPTConfig assumes where config.json is silent.
_DEFAULT_SIZES = {
    "num_hidden_layers": 12,
    "hidden_size": 768,
    "num_attention_heads": 12,
    "ffn_dim": 3072,
    "vocab_size": 50272,
    "max_position_embeddings": 2048,
}
_DEFAULT_FLAGS = {
    "do_layer_norm_before": True,
    "_remove_final_layer_norm": False,
    "enable_bias": True,
    "layer_norm_elementwise_affine": True,
    "tie_word_embeddings": True,
}
_DEFAULT_TOKEN_IDS = {"bos_token_id": 2, "eos_token_id": 2, "pad_token_id": 1}


def model_spec(config: Mapping[str, Any], name: str, max_seq_len: int | None = None) -> ModelSpec:
    """Return the structure that ``config`` (the content of config.json) describes.

    As in transformers' modeling_opt: the decoder ends in a norm iff ``do_layer_norm_before`` and
    not ``_remove_final_layer_norm``; project_in and project_out exist iff ``word_embed_proj_dim``
    differs from ``hidden_size``. Dropout, layerdrop and init_std only matter in training.

    ``max_seq_len`` defaults to ``max_position_embeddings``. Raises UnsupportedModelError with all
    reasons at once.
    """
    reader = _ConfigReader(config)
    sizes = {key: reader.size(key, default) for key, default in _DEFAULT_SIZES.items()}
    flags = {key: reader.flag(key, default) for key, default in _DEFAULT_FLAGS.items()}
    hidden_size, vocab_size = sizes["hidden_size"], sizes["vocab_size"]
    projection = reader.size("word_embed_proj_dim", hidden_size)
    activation = reader.activation()
    token_ids = {
        key: reader.token_id(key, default, vocab_size)
        for key, default in _DEFAULT_TOKEN_IDS.items()
    }
    reader.check_kind()
    reader.check_heads(hidden_size, sizes["num_attention_heads"])
    positions = sizes["max_position_embeddings"]
    reader.check_max_seq_len(max_seq_len, positions)
    if reader.problems:
        raise UnsupportedModelError(name, *reader.problems)
    return ModelSpec(
        name=name,
        num_layers=sizes["num_hidden_layers"],
        hidden_size=hidden_size,
        word_embed_proj_dim=projection,
        num_heads=sizes["num_attention_heads"],
        ffn_dim=sizes["ffn_dim"],
        vocab_size=vocab_size,
        max_position_embeddings=positions,
        max_seq_len=max_seq_len or positions,
        do_layer_norm_before=flags["do_layer_norm_before"],
        final_layer_norm=flags["do_layer_norm_before"] and not flags["_remove_final_layer_norm"],
        enable_bias=flags["enable_bias"],
        layer_norm_elementwise_affine=flags["layer_norm_elementwise_affine"],
        activation_function=activation,
        tie_word_embeddings=flags["tie_word_embeddings"],
        **token_ids,
    )


class _ConfigReader:
    """Reads fields one by one and collects what is wrong with them."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.config = config
        self.problems: list[str] = []

    def size(self, key: str, default: int) -> int:
        value = self.config.get(key)
        if value is None:
            return default
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            self.problems.append(f"{key} is {value!r}; allowed: an integer of at least 1")
            return default
        return value

    def flag(self, key: str, default: bool) -> bool:
        value = self.config.get(key, default)
        if not isinstance(value, bool):
            self.problems.append(f"{key} is {value!r}; allowed: true or false")
            return default
        return value

    def token_id(self, key: str, default: int, vocab_size: int) -> int | None:
        value = self.config.get(key, _MISSING)
        if value is _MISSING:
            value = default if default < vocab_size else None
        if isinstance(value, list) and len(value) == 1:
            value = value[0]
        if value is None:
            return None
        if isinstance(value, list):
            self.problems.append(
                f"{key} is {value}; one id is supported; keep one in config.json and give the "
                "others as stop_token_ids when generating"
            )
            return None
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < vocab_size:
            self.problems.append(
                f"{key} is {value!r}; allowed: null or an integer from 0 to {vocab_size - 1}"
            )
            return None
        return value

    def activation(self) -> Activation:
        value = self.config.get("activation_function", "relu")
        for allowed in _ACTIVATIONS:
            if value == allowed:
                return allowed
        self.problems.append(
            f"activation_function is {value!r}; allowed: {', '.join(_ACTIVATIONS)}"
        )
        return "relu"

    def check_kind(self) -> None:
        model_type = self.config.get("model_type")
        if model_type != "opt":
            self.problems.append(f"model_type is {model_type!r}; allowed: 'opt'")
        architectures = self.config.get("architectures") or []
        unknown = [item for item in architectures if item not in _ARCHITECTURES]
        if unknown:
            self.problems.append(
                f"architectures has {', '.join(map(repr, unknown))}; "
                f"allowed: {', '.join(_ARCHITECTURES)}"
            )
        quantization = self.config.get("quantization_config")
        if quantization:
            method = quantization.get("quant_method") if isinstance(quantization, dict) else None
            self.problems.append(
                f"quantization_config is set (method {method!r}): weights are already quantised; "
                "export the original checkpoint and choose --quantize"
            )

    def check_heads(self, hidden_size: int, num_heads: int) -> None:
        if hidden_size % num_heads:
            self.problems.append(
                f"num_attention_heads is {num_heads}; it must divide hidden_size {hidden_size}"
            )

    def check_max_seq_len(self, max_seq_len: int | None, positions: int) -> None:
        if max_seq_len is not None and max_seq_len > positions:
            self.problems.append(
                f"max_seq_len is {max_seq_len}; allowed: 1 to {positions}, the model's "
                "max_position_embeddings"
            )
