"""Input and output tensors of a model, with the names of vLLM's and TensorRT-LLM's backends."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, Self

import numpy as np
import numpy.typing as npt
from pydantic import ConfigDict, Field

from ....engines.checking import ValidatedConfig, field_problems
from ....engines.documents import parse_json
from ....engines.errors import SkipDecError, UsageError, shown
from ...drafting.resolver import wants_drafts
from ...requests.request import Prompt
from ...schedule import ExitSchedule
from ...schedule.text import beyond_notation, format_schedule
from ...tokens.outputs import Drafts, Logprob, RequestOutput, StreamDelta
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
        """Return a client's values in Python's own types: one, or a list of them.

        An FP32 is read as the shortest decimal number that it represents, which is what the client
        wrote: 0.8, not 0.800000011920929. Raises UsageError for a text that isn't UTF-8, and if
        there is not exactly one value.
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
    **{name: name for name in ("max_tokens", "temperature", "top_k", "top_p", "seed")},
    **{f"{name}_penalty": f"{name}_penalty" for name in ("repetition", "presence", "frequency")},
    "random_seed": "seed",
    "stop_words": "stop",
}
_LONGEST = {"messages": 1 << 22, "schedule": 16_384, "sampling_parameters": 1 << 20}  # characters


class TritonRequest(ValidatedConfig):
    """One request; a field is an input tensor, declared by its `TensorType`; all are optional.

    ``messages``: those of a chat, as a JSON array, if the bundle has a chat template.
    ``sampling_parameters``: the fields of SamplingParams as a JSON object, whose numbers may be
    texts, as clients of vLLM's backend send them. Each field may be given as a tensor instead, but
    not twice.
    """

    model_config = ConfigDict(strict=True)

    text_input: Annotated[str | None, _TEXT] = None
    input_ids: Annotated[list[int] | None, TensorType("INT32", -1)] = None
    messages: Annotated[str | None, _TEXT] = None
    schedule: Annotated[str | None, _TEXT] = None
    client: Annotated[str | None, _TEXT] = Field(default=None, max_length=256)
    draft: Annotated[str | None, _TEXT] = None
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
    return_num_draft_tokens: Annotated[bool, _FLAG] = False
    return_num_accepted_draft_tokens: Annotated[bool, _FLAG] = False
    params: SamplingParams = Field(default_factory=SamplingParams, description="made of the others")

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Any]) -> Self:
        """Read a request's tensors, by name, and refuse its parameters, which are no arrays.

        Raises UsageError for anything that is not allowed.
        """
        types = input_types()
        if unknown := ", ".join(name for name in tensors if name not in types):
            raise UsageError(unknown, f"is unknown; allowed: {', '.join(types)}")
        for name, value in tensors.items():
            if not isinstance(value, np.ndarray):
                raise UsageError(name, "is a parameter of the request; send it as an input")
        values = {name: types[name].value(name, array) for name, array in tensors.items()}
        for name, most in _LONGEST.items():
            if len(values.get(name) or "") > most:
                raise UsageError(name, f"has {len(values[name]):,} characters; allowed: {most:,}")
        logs = any(values.get(name) for name in ("return_logprobs", "return_cumulative_logprob"))
        return cls(**values, params=_sampling_params(values, logs))

    def _problems(self) -> Iterator[str]:
        forms = (self.text_input, self.input_ids, self.messages)
        if sum(form is not None for form in forms) != 1:
            yield "give one of `text_input`, `input_ids` and `messages`"
        if self.text_input is None and not self.exclude_input_in_output:
            yield "`exclude_input_in_output` is false; allowed: with `text_input` only"
        if self.schedule is not None and (kind := beyond_notation(self.schedule)):
            yield f"`schedule` is {shown(self.schedule)}, {kind}; give the schedule's text"
        yield from field_problems("draft", wants_drafts, self.draft)

    @property
    def prompt(self) -> Prompt:
        """The text, the token ids, or the messages. Raises UsageError for broken JSON."""
        if self.messages is not None:
            messages = parse_json(self.messages, UsageError, subject="messages", yields=True)
            return {"messages": messages}
        return self.text_input if self.text_input is not None else self.input_ids or []


def input_types() -> dict[str, TensorType]:
    """Return the names and types of the declared inputs."""
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
    for name, parameter in _SAMPLING.items():
        if name not in values:
            continue
        if parameter in chosen:
            raise UsageError(name, f"is given twice, as {parameter} of another field too; give one")
        chosen[parameter] = values[name]
    if logs:
        chosen.setdefault("logprobs", 0)
    return SamplingParams(**chosen)


def _read_parameters(text: str) -> dict[str, Any]:
    subject = "sampling_parameters"
    found = parse_json(text, UsageError, subject=subject)
    if not isinstance(found, dict):
        raise UsageError(subject, f"is {shown(text)}; allowed: a JSON object")
    fields = SamplingParams.without_nulls(found)
    return {name: _read_number(name, value) for name, value in fields.items()}


def _read_number(name: str, value: object) -> object:
    """Return a number or boolean that is written as a text; anything else unchanged."""
    if name == "stop" or not isinstance(value, str):
        return value
    if (truth := {"true": True, "false": False}.get(value.lower())) is not None:
        return truth
    for kind in (int, float):
        with suppress(ValueError):
            return kind(value)
    return value


_TEXTS = TensorType("STRING", -1)

# With n completions, texts and reasons are [n]; token_ids and layers_per_token are concatenated;
# num_output_tokens [n] says where each ends. Drafted tokens are counted when a completion ends.
OUTPUT_TYPES = {
    "text_output": _TEXTS,
    "finish_reason": _TEXTS,
    "cumulative_logprob": TensorType("FP32", -1),
    "logprobs": _TEXTS,
    "token_ids": TensorType("INT32", -1),
    "layers_per_token": TensorType("INT32", -1),
    "layer_ranges": TensorType("STRING"),
    "schedule": TensorType("STRING"),
    "num_input_tokens": TensorType("UINT32"),
    "num_output_tokens": TensorType("UINT32", -1),
    "num_draft_tokens": TensorType("UINT32", -1),
    "num_accepted_draft_tokens": TensorType("UINT32", -1),
}


@dataclass
class _Completion:
    """The unsent part of one completion, and totals over all of it."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    layers: list[int] = field(default_factory=list)
    logprobs: list[dict[int, Logprob]] = field(default_factory=list)
    cumulative_logprob: float = 0.0  # of all tokens so far, sent or not
    finish_reason: str | None = None
    drafts: Drafts = field(default_factory=Drafts)

    def add(self, delta: StreamDelta) -> None:
        self.text += delta.text
        self.token_ids += delta.token_ids
        self.layers += [delta.layers] * len(delta.token_ids)
        for token, logprobs in zip(delta.token_ids, delta.logprobs or (), strict=False):
            self.logprobs.append(logprobs)
            self.cumulative_logprob += logprobs[token].logprob
        self.finish_reason = delta.finish_reason

    def forget(self) -> None:
        self.text = ""
        self.token_ids, self.layers, self.logprobs = [], [], []
        self.drafts = Drafts()


@dataclass
class Answer:
    """Collects a request's deltas into responses: one at the end, or one whenever there is text.

    ``has_text``: the bundle has a tokenizer; without one, each step of a stream is a response.
    """

    request: TritonRequest
    schedule: ExitSchedule
    num_input_tokens: int
    has_text: bool

    def __post_init__(self) -> None:
        echo = "" if self.request.exclude_input_in_output else self.request.text_input or ""
        self._completions = [_Completion(echo) for _ in range(self.request.params.n)]

    def add(self, delta: StreamDelta) -> None:
        """Add a delta of a step. Raises SkipDecError if it reports that the computation failed."""
        if delta.finish_reason == "error":
            raise SkipDecError("generation", f"failed ({delta.stop_reason})")
        self._completions[delta.index].add(delta)

    def count_drafts(self, output: RequestOutput) -> None:
        """Take the numbers of drafted tokens from the result of the whole request."""
        for completion, ended in zip(self._completions, output.outputs, strict=True):
            completion.drafts = ended.drafts or Drafts()

    @property
    def is_whole(self) -> bool:
        """True if all completions have ended."""
        return all(completion.finish_reason is not None for completion in self._completions)

    @property
    def finish_reasons(self) -> list[str]:
        """The reason of each completion that has ended."""
        return [one.finish_reason for one in self._completions if one.finish_reason is not None]

    @property
    def is_due(self) -> bool:
        """True if there is a part to stream; incomplete characters are held back until the end."""
        unsent = (one.text if self.has_text else one.token_ids for one in self._completions)
        return self.request.stream and any(unsent)

    def take(self) -> dict[str, npt.NDArray[Any]]:
        """Return the output tensors of the unsent part, and clear it."""
        completions = self._completions
        layers = [count for one in completions for count in one.layers]
        makers: dict[str, Callable[[], Any]] = {
            "text_output": lambda: [one.text for one in completions],
            "finish_reason": lambda: [one.finish_reason or "" for one in completions],
            "cumulative_logprob": lambda: [one.cumulative_logprob for one in completions],
            "logprobs": lambda: [_logprobs_json(one.logprobs) for one in completions],
            "token_ids": lambda: [token for one in completions for token in one.token_ids],
            "layers_per_token": lambda: layers,
            "layer_ranges": lambda: json.dumps(self.schedule.layer_ranges(sorted(set(layers)))),
            "schedule": lambda: format_schedule(self.schedule),
            "num_input_tokens": lambda: self.num_input_tokens,
            "num_output_tokens": lambda: [len(one.token_ids) for one in completions],
            "num_draft_tokens": lambda: [one.drafts.drafted for one in completions],
            "num_accepted_draft_tokens": lambda: [one.drafts.accepted for one in completions],
        }
        tensors = {
            name: OUTPUT_TYPES[name].array(make())
            for name, make in makers.items()
            if getattr(self.request, f"return_{name}", name == "text_output")
        }
        for completion in completions:
            completion.forget()
        return tensors


def _logprobs_json(logprobs: list[dict[int, Logprob]]) -> str:
    """Return a list with an object per token: token id → logprob, rank, decoded_token."""
    return json.dumps([{token: one.to_dict() for token, one in step.items()} for step in logprobs])
