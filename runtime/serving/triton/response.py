"""Responses of a model: output tensors for a whole request, or for the tokens of a step."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import numpy.typing as npt

from ....engines.errors import SkipDecError
from ...schedule import ExitSchedule
from ...schedule.text import format_schedule
from ...tokens.outputs import Logprob, StreamDelta
from .request import TensorType, TritonRequest

_TEXTS, _COUNTS = TensorType("STRING", -1), TensorType("UINT32", -1)

# Of n completions, texts and reasons are [n]; token_ids and layers_per_token are one after another,
# num_output_tokens, [n], says where each ends.
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
    "num_output_tokens": _COUNTS,
}


@dataclass
class _Completion:
    """The unsent part of one completion, and the facts about all of it."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    layers: list[int] = field(default_factory=list)
    logprobs: list[dict[int, Logprob]] = field(default_factory=list)
    cumulative_logprob: float = 0.0  # of all tokens so far, sent or not
    finish_reason: str | None = None

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


class Answer:
    """Gathers a request's deltas into responses: one at the end, or as soon as there is text.

    ``schedule``: what it runs. ``num_input_tokens``: of the prompt. ``has_text``:
    whether the bundle has a tokenizer; without one each step of a stream is a response.
    """

    def __init__(
        self,
        request: TritonRequest,
        *,
        schedule: ExitSchedule,
        num_input_tokens: int,
        has_text: bool,
    ) -> None:
        self._request = request
        self._schedule = schedule
        self._num_input_tokens = num_input_tokens
        self._has_text = has_text
        shown = "" if request.exclude_input_in_output else request.text_input or ""
        self._completions = [_Completion(shown) for _ in range(request.params.n)]

    def add(self, delta: StreamDelta) -> None:
        """Take a step's. Raises SkipDecError for one that says that the computation failed."""
        if delta.finish_reason == "error":
            raise SkipDecError("generation", f"failed ({delta.stop_reason})")
        self._completions[delta.index].add(delta)

    @property
    def is_whole(self) -> bool:
        """True if all completions have ended."""
        return all(completion.finish_reason is not None for completion in self._completions)

    @property
    def finish_reasons(self) -> set[str]:
        """Why completions have ended, those that have."""
        return {one.finish_reason for one in self._completions if one.finish_reason is not None}

    @property
    def is_due(self) -> bool:
        """True if there is something to send; incomplete characters are held back."""
        if self.is_whole:
            return True
        return self._request.stream and any(
            completion.text if self._has_text else completion.token_ids
            for completion in self._completions
        )

    def take(self) -> dict[str, npt.NDArray[Any]]:
        """The output tensors of what was not sent yet, which is forgotten."""
        request, completions = self._request, self._completions
        values: dict[str, Any] = {"text_output": [one.text for one in completions]}
        if request.return_finish_reason:
            values["finish_reason"] = [one.finish_reason or "" for one in completions]
        if request.return_cumulative_logprob:
            values["cumulative_logprob"] = [one.cumulative_logprob for one in completions]
        if request.return_logprobs:
            values["logprobs"] = [_logprobs_json(one.logprobs) for one in completions]
        if request.return_token_ids:
            values["token_ids"] = [token for one in completions for token in one.token_ids]
        if request.return_layers_per_token:
            values["layers_per_token"] = [count for one in completions for count in one.layers]
        if request.return_layer_ranges:
            counts = {count for one in completions for count in one.layers}
            values["layer_ranges"] = json.dumps(self._schedule.layer_ranges(sorted(counts)))
        if request.return_schedule:
            values["schedule"] = format_schedule(self._schedule)
        if request.return_num_input_tokens:
            values["num_input_tokens"] = self._num_input_tokens
        if request.return_num_output_tokens:
            values["num_output_tokens"] = [len(one.token_ids) for one in completions]
        for completion in completions:
            completion.forget()
        return {name: OUTPUT_TYPES[name].array(value) for name, value in values.items()}


def _logprobs_json(logprobs: list[dict[int, Logprob]]) -> str:
    """A list with an object a token: token id → logprob, rank, decoded_token."""
    return json.dumps([{token: one.to_dict() for token, one in step.items()} for step in logprobs])
