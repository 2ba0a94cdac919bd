"""Conversion of a Hugging Face ``config.json`` to the ModelSpec that determines the graphs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self, TypeGuard

import numpy as np
from pydantic import ConfigDict

from ...engines.errors import UnsupportedModelError, UsageError, shown
from ...engines.manifest import MAX_END_TOKENS, MAX_TOKENS, ModelSpec, SamplingDefaults
from ...runtime.tokens.sampling import SamplingParams
from .architecture import ARCHITECTURES, family_architecture

DEFAULT_MAX_SEQ_LEN = 8192
"""Longest text of a bundle by default, since each row may reserve memory for all positions."""

_FLOAT32 = np.finfo(np.float32)  # the type in which engines compute
_LEAST, _MOST = float(_FLOAT32.smallest_normal), float(_FLOAT32.max)


def model_spec(
    config: Mapping[str, Any],
    name: str,
    max_seq_len: int | None = None,
    generation_config: Mapping[str, Any] | None = None,
) -> ModelSpec:
    """Return the structure that ``config`` (the content of config.json) describes.

    ``max_seq_len`` defaults to ``max_position_embeddings``. As in transformers, the tokens that end
    a text are those of ``generation_config`` (the content of generation_config.json) or, if it has
    none, those of ``config``. The sampling parameters of ``generation_config`` become the bundle's
    defaults. Raises UnsupportedModelError, with all reasons at once, for an unknown family or
    features that the family does not support.
    """
    model_type = config.get("model_type")
    if not isinstance(model_type, str) or model_type not in ARCHITECTURES:
        allowed = ", ".join(map(repr, ARCHITECTURES))
        problem = f"model_type is {model_type!r}; allowed: {allowed}"
        raise UnsupportedModelError(name, problem, *_reasons(config))
    model = family_architecture(model_type).spec_from_config(config, name, max_seq_len)
    defaults = _sampling_defaults(generation_config or {}, name)
    model = model.model_copy(update={"sampling_defaults": defaults})
    for source in (generation_config or {}, config):
        reader = ConfigReader(source)
        ends = reader.token_ids("eos_token_id", model.vocab_size)
        if reader.problems:
            raise _in_generation_config(name, reader.problems)
        if ends:
            return model.model_copy(update={"eos_token_id": ends[0], "end_token_ids": ends})
    return model


def _sampling_defaults(generation_config: Mapping[str, Any], name: str) -> SamplingDefaults:
    """Return the recommended sampling parameters; like vLLM, ignore ``do_sample``.

    Raises UnsupportedModelError, naming the file, for values that SamplingParams refuses.
    """
    found = ((field, generation_config.get(field)) for field in SamplingDefaults.model_fields)
    given = {field: value for field, value in found if value is not None}
    try:
        SamplingParams(**given)
        return SamplingDefaults.parse(given, UsageError, name)  # a manifest holds less
    except UsageError as error:
        raise _in_generation_config(name, error.problems) from error


def _in_generation_config(name: str, problems: Iterable[str]) -> UnsupportedModelError:
    return UnsupportedModelError(name, *(f"generation_config.json: {each}" for each in problems))


# Fields of structures that skipdec does not support, and what they mean.
_FOREIGN_FIELDS: Mapping[str, tuple[str, ...]] = {
    "it is a model of several modalities; text models alone are supported": (
        "text_config",
        "vision_config",
        "audio_config",
    ),
    "its feed-forwards are a mixture of experts: each token would read other weights": (
        "num_local_experts",
        "num_experts",
        "n_routed_experts",
        "moe_num_experts",
    ),
    "its attention is multi-head latent attention, whose cache is neither keys nor values": (
        "kv_lora_rank",
    ),
    "some layers are state spaces or linear attention, whose memory is no cache of tokens": (
        "state_size",
        "ssm_cfg",
        "mamba_d_state",
        "conv_L_cache",
        "linear_conv_kernel_dim",
        "attn_layer_period",
    ),
}


def _reasons(config: Mapping[str, Any]) -> list[str]:
    """Return why the exporter can't support the structure of an unknown family, if fields say."""
    return [
        f"{reason} ({', '.join(found)})"
        for reason, fields in _FOREIGN_FIELDS.items()
        if (found := [field for field in fields if config.get(field) is not None])
    ]


class FamilySpec(ModelSpec):
    """Base of a family's ModelSpec, whose subclass declares the family's own facts as fields.

    Numbers must be finite.
    """

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    @classmethod
    def of(cls, model: ModelSpec) -> Self:
        """Read the facts that ``model`` carries. Raises UnsupportedModelError for invalid ones."""
        return cls.parse(model.model_dump(), UnsupportedModelError, model.name)

    def model_spec(self) -> ModelSpec:
        """Return the form that manifests store, without the family's facts that are None."""
        return ModelSpec.model_validate(self.model_dump(exclude_none=True))


def is_number(value: object) -> TypeGuard[int | float]:
    """Return True for a number above 0 within float32's range."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return _LEAST <= value <= _MOST


class ConfigReader:
    """Reads the fields of a config.json one by one and collects their problems.

    A bad field is read as its default, and ``problems`` gets a sentence about it. ``prefix``
    precedes the names of fields in these sentences, for an object inside a config.json.
    """

    def __init__(self, config: Mapping[str, Any], prefix: str = "") -> None:
        self.config = config
        self.prefix = prefix
        self.problems: list[str] = []
        self._refused: set[str] = set()

    def within(self, config: Mapping[str, Any], prefix: str) -> ConfigReader:
        """Return a reader of an object inside, whose problems are this reader's, too."""
        inner = ConfigReader(config, prefix)
        inner.problems, inner._refused = self.problems, self._refused
        return inner

    def size(self, key: str, default: int, maximum: int, *, may_be_null: bool = False) -> int:
        """Return an integer from 1 to ``maximum``; ``default`` if missing, or null if it may be."""
        value = self.config.get(key, default)
        if value is None and may_be_null:
            return default
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= maximum:
            self._refuse(key, f"allowed: an integer from 1 to {maximum}")
            return default
        return value

    def number(self, key: str, default: float) -> float:
        """Return a number above 0 within float32's range; ``default`` if missing or null."""
        value = self.config.get(key)
        if value is None:
            return default
        if not is_number(value):
            self._refuse(key, "allowed: a number above 0 within float32's range")
            return default
        return float(value)

    def required(self, key: str) -> float:
        """Return a required number above 0 within float32's range."""
        if self.config.get(key) is None:
            self._refused.add(key)
            self.problems.append(f"{self.prefix}{key} is missing; set it in config.json")
        return self.number(key, 1.0)

    def flag(self, key: str, default: bool) -> bool:
        """Return true or false; ``default`` if it is missing."""
        value = self.config.get(key, default)
        if not isinstance(value, bool):
            self._refuse(key, "allowed: true or false")
            return default
        return value

    def token_id(self, key: str, default: int | None, vocab_size: int) -> int | None:
        """Return a vocabulary id; None for null; ``default``, if valid, for a missing field.

        For a list, which instruct models have for the end of a text, return its first id.
        """
        if key not in self.config:
            return default if default is not None and default < vocab_size else None
        return next(iter(self.token_ids(key, vocab_size)), None)

    def token_ids(self, key: str, vocab_size: int) -> tuple[int, ...]:
        """Return the distinct vocabulary ids of a field that holds one or a list; () if none.

        Old configurations write -1 for no token.
        """
        value = self.config.get(key)
        ids = value if isinstance(value, list) else [] if value in (None, -1) else [value]
        if not self.accepted("vocab_size"):
            vocab_size = MAX_TOKENS
        is_valid = all(type(each) is int and 0 <= each < vocab_size for each in ids)
        if not is_valid or len(ids) > MAX_END_TOKENS:
            self.problems.append(
                f"{key} is {shown(value)}; allowed: null, an integer from 0 to {vocab_size - 1}, "
                f"or a list of up to {MAX_END_TOKENS} of these"
            )
            return ()
        return tuple(dict.fromkeys(ids))

    def choice(self, key: str, allowed: Sequence[str]) -> str:
        """Return one of the texts ``allowed``; the first of them if the field is missing."""
        value = self.config.get(key, allowed[0])
        if value not in allowed:
            self._refuse(key, f"allowed: {', '.join(allowed)}")
            return allowed[0]
        return str(value)

    def check_kind(self, allowed: Sequence[str]) -> None:
        """Check that ``architectures`` lists only ``allowed`` and weights are not quantised."""
        architectures = self.config.get("architectures") or []
        if not isinstance(architectures, list):
            architectures = [architectures]
        known = {name.lower() for name in allowed}  # the first LLaMAs have LLaMAForCausalLM
        unknown = [item for item in architectures if str(item).lower() not in known]
        if unknown:
            self.problems.append(
                f"architectures has {', '.join(map(repr, unknown))}; allowed: {', '.join(allowed)}"
            )
        quantization = self.config.get("quantization_config")
        if quantization:
            method = quantization.get("quant_method") if isinstance(quantization, dict) else None
            self.problems.append(
                f"quantization_config is set (method {method!r}): weights are already quantised; "
                "export the original checkpoint and choose --quantize"
            )

    def length(
        self, max_seq_len: int | None, positions: int, limits: Mapping[str, int | None]
    ) -> int:
        """Return the length of the bundle's longest text: ``max_seq_len``, else what limits allow.

        Without ``max_seq_len`` it is at most DEFAULT_MAX_SEQ_LEN. ``limits`` maps the reason of
        each limit to the longest text that it allows, or None.
        """
        allowed = {reason: longest for reason, longest in limits.items() if longest is not None}
        if max_seq_len is None:
            return min(DEFAULT_MAX_SEQ_LEN, positions, *allowed.values())
        if max_seq_len > positions and self.accepted("max_position_embeddings"):
            self.problems.append(
                f"max_seq_len is {max_seq_len}; allowed: 1 to {positions}, the model's "
                "max_position_embeddings"
            )
        self.problems += [
            f"max_seq_len is {max_seq_len}; {reason}; allowed: up to {longest}"
            for reason, longest in allowed.items()
            if max_seq_len > longest
        ]
        return max_seq_len

    def accepted(self, *keys: str) -> bool:
        """Return True if no problem was found with these fields, whose values may be compared."""
        return self._refused.isdisjoint(keys)

    def _refuse(self, key: str, remedy: str) -> None:
        self._refused.add(key)
        self.problems.append(f"{self.prefix}{key} is {shown(self.config[key])}; {remedy}")
