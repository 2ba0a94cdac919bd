"""Hugging Face's own model of a structure, with a checkpoint's weights in float32."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ...engines.manifest import FloatType, ModelSpec
from ..architecture.architecture import decoder_of, family_architecture
from ..architecture.weights import TensorReader

ReadTensor = Callable[[str], Tensor]


def hugging_face_logits(
    rows: Sequence[Sequence[int]],
    model: ModelSpec,
    dtype: FloatType,
    reader: TensorReader,
    *,
    computes_in: FloatType = "float32",
) -> list[NDArray[np.float32]]:
    """Return each row's logits [len(row), V] by Hugging Face's model, rounded to ``dtype``.

    A module's weights are in memory only while it runs, so that models larger than memory work.
    """
    reference = family_architecture(model.family).reference_model(model).eval()
    weights, chosen = _weights(model, dtype, reader), getattr(torch, computes_in)
    for path, module in reference.named_modules():
        _read_when_run(path, module, lambda name: weights(name).to(chosen))
    with torch.inference_mode():
        # Attention is causal, so padding on the right changes nothing before it.
        logits = reference(torch.from_numpy(pad_right(rows))).logits.float().numpy()  # [B, S, V]
    return [each[: len(row)] for row, each in zip(rows, logits, strict=True)]


def hugging_face_model(model: ModelSpec, dtype: FloatType, reader: TensorReader) -> Any:  # noqa: ANN401
    """Return the family's Hugging Face model in float32, its weights rounded to ``dtype``."""
    reference: Any = family_architecture(model.family).reference_model(model)
    read = _weights(model, dtype, reader)
    reference.load_state_dict({name: read(name) for name in reference.state_dict()}, assign=True)
    if model.tie_word_embeddings:
        reference.tie_weights()
    return reference.eval()


def written_greedily(
    model: Any,  # noqa: ANN401  (transformers is untyped)
    rows: Sequence[Sequence[int]],
    max_tokens: int,
    ends: Sequence[int],
    is_spent: Callable[[], bool] = lambda: False,
) -> list[list[int]]:
    """Return what a transformers model writes greedily after each row, in one batch.

    A text ends with one of ``ends``, after ``max_tokens``, or once ``is_spent`` returns True.
    """
    from transformers import GenerationConfig, StoppingCriteria, StoppingCriteriaList

    class Spent(StoppingCriteria):  # type: ignore[misc]  # transformers' torch is untyped here
        def __call__(self, input_ids: Tensor, scores: Tensor, **_: object) -> Tensor:
            return torch.full((len(input_ids),), is_spent(), device=input_ids.device)

    longest = max(map(len, rows))
    pad = ends[0] if ends else 0
    padding = [longest - len(row) for row in rows]
    padded = [[pad] * gap + list(row) for gap, row in zip(padding, rows, strict=True)]
    mask = [[0] * gap + [1] * (longest - gap) for gap in padding]
    written = model.generate(
        torch.tensor(padded, device=model.device),
        attention_mask=torch.tensor(mask, device=model.device),
        generation_config=GenerationConfig(
            do_sample=False,
            max_new_tokens=max_tokens,
            eos_token_id=list(ends) or None,
            pad_token_id=pad,
        ),
        stopping_criteria=StoppingCriteriaList([Spent()]),
    )
    return [_until_end(text.tolist(), ends) for text in written[:, longest:]]


def _until_end(token_ids: list[int], ends: Sequence[int]) -> list[int]:
    """Return the tokens up to the first end of text, after which there is padding."""
    indices = [index for index, token_id in enumerate(token_ids) if token_id in ends]
    return token_ids[: indices[0] + 1] if indices else token_ids


def pad_right(rows: Sequence[Sequence[int]]) -> NDArray[np.int64]:
    """Return rows of token ids as one array [B, S], padded with 0."""
    padded = max(map(len, rows))
    return np.array([[*row, *[0] * (padded - len(row))] for row in rows])


def _weights(model: ModelSpec, dtype: FloatType, reader: TensorReader) -> ReadTensor:
    """Return a function that maps a parameter's name in transformers to its float32 weights."""
    spare = decoder_of(model).spare_tensors

    def read(name: str) -> Tensor:
        canonical = name.removeprefix("model.")
        canonical = spare.get(canonical) or canonical  # the twin of a tied tensor
        rounded = reader.read(canonical).astype(dtype, copy=False)
        return torch.from_numpy(np.require(rounded, np.float32, "W"))

    return read


def _read_when_run(path: str, module: nn.Module, read: ReadTensor) -> None:
    """Load the weights of ``module`` before each of its calls and drop them afterwards."""
    absent = dict(module.named_parameters(recurse=False))  # on the meta device
    if not absent:
        return

    def fill(module: nn.Module, *_: object) -> None:
        for name in absent:
            setattr(module, name, nn.Parameter(read(f"{path}.{name}"), requires_grad=False))

    def empty(module: nn.Module, *_: object) -> None:
        for name, parameter in absent.items():
            setattr(module, name, parameter)

    module.register_forward_pre_hook(fill)
    module.register_forward_hook(empty)
