"""A request's input tensors, with the names of vLLM's and TensorRT-LLM's backends of Triton."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

import numpy as np
import numpy.typing as npt
from pydantic import ConfigDict, Field

from ....engines.checking import ValidatedConfig
from ....engines.documents import parse_json
from ....engines.errors import UsageError, shown
from ...requests.request import Prompt
from ...schedule.notation import beyond_notation
from ...tokens.sampling import SamplingParams

DataType = Literal["STRING", "BOOL", "INT32", "UINT32", "UINT64", "FP32"]

_MOST_VALUES = 1 << 17  # of one tensor; a prompt of an OPT has 2,048 tokens at most

_NUMPY: dict[DataType, type[np.generic]] = {
    "STRING": np.object_,
    "BOOL": np.bool_,
    "INT32": np.int32,
    "UINT32": np.uint32,
    "UINT64": np.uint64,
    "FP32": np.float32,
}


@dataclass(frozen=True)
class TensorType:
    """Type and size of a tensor of one dimension: [1], or [-1] for any number of values."""

    data_type: DataType
    size: Literal[1, -1] = 1

    def array(self, values: Any) -> npt.NDArray[Any]:  # noqa: ANN401  (one value, or several)
        """Return ``values`` as an array that the backend takes; texts as UTF-8."""
        flat = list(values) if self.size == -1 else [values]
        if self.data_type == "STRING":
            flat = [text.encode("utf-8", "replace") for text in flat]
        return np.array(flat, dtype=_NUMPY[self.data_type])

    def value(self, name: str, array: npt.NDArray[Any]) -> Any:  # noqa: ANN401  (see below)
        """A client's values in Python's own types: one, or a list of them.

        A FP32 is read as the shortest decimal number that it stands for, 0.8 as 0.8 and not as
        0.800000011920929: what a client wrote. Raises UsageError for a text that isn't UTF-8, and
        where there is not one value.
        """
        if self.size == 1 and array.size != 1:
            raise UsageError(name, f"has {array.size} values; allowed: one")
        if array.size > _MOST_VALUES:
            raise UsageError(name, f"has {array.size:,} values; allowed: {_MOST_VALUES:,}")
        values = [self._read(name, value) for value in array.reshape(-1).tolist()]
        return values[0] if self.size == 1 else values

    def _read(self, name: str, value: Any) -> Any:  # noqa: ANN401
        if self.data_type == "FP32":
            return float(np.format_float_positional(np.float32(value)))
        if self.data_type != "STRING":
            return value
        try:
            return value.decode("utf-8")
        except UnicodeDecodeError as error:
            raise UsageError(name, f"is no UTF-8 ({error}); send text in UTF-8") from error


_TEXT, _FLAG = TensorType("STRING"), TensorType("BOOL")
_INT, _FLOAT = TensorType("INT32"), TensorType("FP32")

# TensorRT-LLM's names of sampling parameters → SamplingParams'. `random_seed` is its older `seed`.
_SAMPLING = {
    "max_tokens": "max_tokens",
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "seed": "seed",
    "random_seed": "seed",
    "stop_words": "stop",
    "repetition_penalty": "repetition_penalty",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
}


_LONGEST = {"schedule": 16_384, "sampling_parameters": 1 << 20}  # characters


class TritonRequest(ValidatedConfig):
    """One request; a field is an input tensor, declared by its `TensorType`; all are optional.

    ``sampling_parameters``: the fields of SamplingParams as a JSON object, whose numbers may be
    texts, as clients of vLLM's backend send them. Each may be given as a tensor instead, not
    twice.
    """

    model_config = ConfigDict(strict=True)

    text_input: Annotated[str | None, _TEXT] = None
    input_ids: Annotated[list[int] | None, TensorType("INT32", -1)] = None
    schedule: Annotated[str | None, _TEXT] = None
    client: Annotated[str | None, _TEXT] = Field(default=None, max_length=256)
    stream: Annotated[bool, _FLAG] = False
    sampling_parameters: Annotated[str | None, _TEXT] = None
    max_tokens: Annotated[int | None, _INT] = None
    temperature: Annotated[float | None, _FLOAT] = None
    top_k: Annotated[int | None, _INT] = None
    top_p: Annotated[float | None, _FLOAT] = None
    seed: Annotated[int | None, TensorType("UINT64")] = None
    random_seed: Annotated[int | None, TensorType("UINT64")] = None
    stop_words: Annotated[list[str] | None, TensorType("STRING", -1)] = None
    repetition_penalty: Annotated[float | None, _FLOAT] = None
    presence_penalty: Annotated[float | None, _FLOAT] = None
    frequency_penalty: Annotated[float | None, _FLOAT] = None
    exclude_input_in_output: Annotated[bool, _FLAG] = True
    return_finish_reason: Annotated[bool, _FLAG] = False
    return_cumulative_logprob: Annotated[bool, _FLAG] = False
    return_logprobs: Annotated[bool, _FLAG] = False
    return_token_ids: Annotated[bool, _FLAG] = False
    return_layers_per_token: Annotated[bool, _FLAG] = False
    return_layer_ranges: Annotated[bool, _FLAG] = False
    return_schedule: Annotated[bool, _FLAG] = False
    return_num_input_tokens: Annotated[bool, _FLAG] = False
    return_num_output_tokens: Annotated[bool, _FLAG] = False
    params: SamplingParams = Field(default_factory=SamplingParams, description="made of the others")

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, npt.NDArray[Any]]) -> Self:
        """Read a request's tensors. Raises UsageError for what is not allowed in them."""
        types = input_types()
        if unknown := ", ".join(tensors.keys() - types.keys()):
            raise UsageError(unknown, f"is unknown; allowed: {', '.join(types)}")
        values = {name: types[name].value(name, array) for name, array in tensors.items()}
        for name, most in _LONGEST.items():
            if len(values.get(name) or "") > most:
                raise UsageError(name, f"has {len(values[name]):,} characters; allowed: {most:,}")
        logs = any(values.get(name) for name in ("return_logprobs", "return_cumulative_logprob"))
        return cls(**values, params=_sampling_params(values, logs))

    def _problems(self) -> Iterator[str]:
        if (self.text_input is None) == (self.input_ids is None):
            yield "give either `text_input` or `input_ids`"
        if self.text_input is None and not self.exclude_input_in_output:
            yield "`exclude_input_in_output` is false; allowed: with `text_input` only"
        if self.schedule is not None and (kind := beyond_notation(self.schedule)):
            yield f"`schedule` is {shown(self.schedule)}, {kind}; give the schedule's text"

    @property
    def prompt(self) -> Prompt:
        """The text, or the token ids."""
        return self.text_input if self.text_input is not None else self.input_ids or []


def input_types() -> dict[str, TensorType]:
    """The declared inputs: names and types."""
    return {
        name: entry
        for name, info in TritonRequest.model_fields.items()
        for entry in info.metadata
        if isinstance(entry, TensorType)
    }


def _sampling_params(values: Mapping[str, Any], logs: bool) -> SamplingParams:
    """Return the sampling parameters of the tensors; ``logs`` adds log-probabilities."""
    text = values.get("sampling_parameters")
    chosen = {} if text is None else _read_parameters(text)
    for name, field in _SAMPLING.items():
        if name not in values:
            continue
        if field in chosen:
            raise UsageError(name, f"is given twice, as {field} of another field too; give one")
        chosen[field] = values[name]
    if logs:
        chosen.setdefault("logprobs", 0)
    return SamplingParams(**chosen)


def _read_parameters(text: str) -> dict[str, Any]:
    subject = "sampling_parameters"
    found = parse_json(text, UsageError, subject=subject)
    if not isinstance(found, dict):
        raise UsageError(subject, f"is {shown(text)}; allowed: a JSON object")
    return {name: _read_number(name, value) for name, value in found.items()}


def _read_number(name: str, value: object) -> object:
    """A number or truth value that is written as a text; anything else as it is."""
    if name == "stop" or not isinstance(value, str):
        return value
    if (truth := {"true": True, "false": False}.get(value.lower())) is not None:
        return truth
    for kind in (int, float):
        with suppress(ValueError):
            return kind(value)
    return value
