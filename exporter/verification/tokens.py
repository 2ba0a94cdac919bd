"""End-to-end check: the bundle's greedy tokens at full depth against a reference's logits.

The reference is Hugging Face's own model if it fits in memory, else our torch modules, one
engine's weights at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ...engines.backends.session import open_backend
from ...engines.bundle import EngineBundle
from ...engines.manifest import EngineKind, KVType, ModelSpec, PrecisionSpec, kv_width
from ...engines.memory import numpy_dtype
from ...runtime.generator import Generator
from ...runtime.tokens.sampling import SamplingParams
from ..architecture.architecture import architecture_of
from ..architecture.weights import TensorReader
from .calls import EngineCalls
from .report import TokenCheck, TokenReference
from .tolerance import DivergenceBound, divergence

_PROMPT_LENGTHS = (1, 12, 5, 8)
_GENERATED_TOKENS = 8
_REPORTED_LOGPROBS = 20  # they contain most of a trained model's probability

FloatArray = NDArray[np.float32]


@dataclass(frozen=True)
class GreedyText:
    """Tokens that the bundle read, and the token chosen after each of the last ``len(chosen)``.

    ``logprobs[i]`` maps the most probable tokens at that position, and the chosen one, to their
    log-probabilities.
    """

    read: tuple[int, ...]
    chosen: tuple[int, ...]
    logprobs: tuple[dict[int, float], ...]


def token_tolerance(precision: PrecisionSpec) -> float:
    """Return the largest allowed difference of logits, as a fraction of max |logit|."""
    allowed = {"float32": 1e-4, "float16": 5e-3, "bfloat16": 4e-2, "int8": 4e-2}
    return max(allowed[precision.dtype], allowed[precision.kv_dtype or precision.dtype])


def random_prompts(
    model: ModelSpec, seed: int, max_prompt_len: int | None = None
) -> list[list[int]]:
    """Return ragged prompts of seeded random tokens, shortened to the model's positions.

    ``max_prompt_len``: the limit of the engines.
    """
    rng = np.random.default_rng(seed)
    longest = max(1, model.max_seq_len - _generated_tokens(model))
    longest = min(longest, max_prompt_len or longest)
    lengths = [min(length, longest) for length in _PROMPT_LENGTHS]
    return [rng.integers(0, model.vocab_size, length).tolist() for length in lengths]


def greedy_texts(bundle: EngineBundle, seed: int) -> list[GreedyText]:
    """Continue random prompts, as one ragged batch, by the user's way: with Generator.

    Engines built for fewer rows run smaller batches.
    """
    model, build = bundle.manifest.model, bundle.manifest.build
    prompts = random_prompts(model, seed, None if build is None else build.max_prompt_len)
    params = SamplingParams(
        temperature=0.0,
        max_tokens=_generated_tokens(model),
        ignore_eos=True,
        logprobs=min(_REPORTED_LOGPROBS, model.vocab_size),
    )
    rows = len(prompts) if build is None else min(len(prompts), build.max_batch_size)
    backend = open_backend(bundle.manifest.target)
    with Generator(bundle, backend, schedule="full", max_batch_size=rows) as generator:
        outputs = generator.generate(prompts, params)
    texts = []
    for prompt, output in zip(prompts, outputs, strict=True):
        completion = output.outputs[0]
        assert completion.logprobs is not None
        logprobs = tuple({k: v.logprob for k, v in at.items()} for at in completion.logprobs)
        read = (*prompt, *completion.token_ids[:-1])  # the last token was never fed back
        texts.append(GreedyText(read, completion.token_ids, logprobs))
    return texts


def text_from_logits(tokens: Sequence[int], logits: FloatArray) -> GreedyText:
    """Return the choices of a bundle too large to generate, after each of given ``tokens``.

    ``logits`` is [len(tokens), V].
    """
    logprobs = log_softmax(logits)
    likeliest = np.argsort(-logits, axis=1)[:, :_REPORTED_LOGPROBS]
    reported = tuple(
        {int(token): float(row[token]) for token in best}
        for row, best in zip(logprobs, likeliest, strict=True)
    )
    return GreedyText(tuple(tokens), tuple(int(best[0]) for best in likeliest), reported)


def streamed_logits(
    rows: Sequence[Sequence[int]],
    model: ModelSpec,
    kv_dtype: KVType,
    load: Callable[[EngineKind, int | None], EngineCalls],
) -> list[FloatArray]:
    """Read rows of tokens with all engines, loaded one at a time; return logits [len(row), V].

    ``load(kind, layer_index)`` loads an engine or its reference; ``kv_dtype`` is its KV cache's.
    """
    input_ids = pad_right(rows)  # [B, S]
    padded = input_ids.shape[1]
    position_ids = np.tile(np.arange(padded), (len(rows), 1))
    hidden_states = load(EngineKind.EMBED, None).embed(input_ids, position_ids)  # [B, S, E]
    shape = (len(rows), model.num_kv_heads, padded, kv_width(kv_dtype, model))
    key, value = (np.zeros(shape, numpy_dtype(kv_dtype)) for _ in range(2))
    starts = np.zeros(len(rows), np.int64)
    for layer_index in range(model.num_layers):
        layer = load(EngineKind.LAYER, layer_index)
        hidden_states = layer.layer(hidden_states, key, value, starts)
    head = load(EngineKind.HEAD, None)
    return [
        head.head(hidden_states, np.arange(len(row)) + index * padded)
        for index, row in enumerate(rows)
    ]


def hugging_face_logits(
    rows: Sequence[Sequence[int]], model: ModelSpec, dtype: str, reader: TensorReader
) -> list[FloatArray]:
    """Return each row's logits [len(row), V] by Hugging Face's model, rounded to ``dtype``."""
    reference = hugging_face_model(model, dtype, reader)
    with torch.inference_mode():
        # Causal attention: padding on the right changes nothing before it.
        logits = reference(torch.from_numpy(pad_right(rows))).logits.numpy()  # [B, S, V]
    return [each[: len(row)] for row, each in zip(rows, logits, strict=True)]


def pad_right(rows: Sequence[Sequence[int]]) -> NDArray[np.int64]:
    """Return rows of token ids as one array [B, S], padded with 0."""
    padded = max(map(len, rows))
    return np.array([[*row, *[0] * (padded - len(row))] for row in rows])


def hugging_face_model(model: ModelSpec, dtype: str, reader: TensorReader) -> Any:  # noqa: ANN401
    """Return the family's Hugging Face model in float32, its weights read one at a time."""
    architecture = architecture_of(model)
    reference: Any = architecture.reference_model(model)
    spare = architecture.spare_tensors(model)
    weights: dict[str, torch.Tensor] = {}  # by canonical name
    state: dict[str, torch.Tensor] = {}
    for name in reference.state_dict():
        canonical = name.removeprefix("model.")
        canonical = spare.get(canonical) or canonical  # the twin of a tied tensor
        if canonical not in weights:
            rounded = reader.read(canonical).astype(dtype)
            weights[canonical] = torch.from_numpy(rounded.astype(np.float32, copy=False))
        state[name] = weights[canonical]
    reference.load_state_dict(state, assign=True)
    if model.tie_word_embeddings:
        reference.tie_weights()
    return reference.eval()


def compare_tokens(
    texts: Sequence[GreedyText],
    reference_logits: Sequence[FloatArray],
    reference: TokenReference,
    relative_tolerance: float,
    *,
    required: bool,
    bound: DivergenceBound | None = None,
) -> TokenCheck:
    """Compare each generated token with the reference's choice at its position.

    ``reference_logits[r]`` is [tokens read of row r, V]. ``bound``: for a quantised bundle.
    """
    compared = equal = ties = 0
    worst_gap = worst_error = 0.0
    divergences = []
    tolerance = relative_tolerance * max(float(np.abs(each).max()) for each in reference_logits)
    for text, logits in zip(texts, reference_logits, strict=True):
        last = logits[-len(text.chosen) :]  # [G, V]
        for chosen, row, logprobs in zip(text.chosen, last, text.logprobs, strict=True):
            compared += 1
            gap = float(row.max() - row[chosen])
            equal += gap == 0.0
            ties += 0.0 < gap <= tolerance
            expected = log_softmax(row.astype(np.float64))
            divergences.append(divergence(expected, logprobs))
            errors = [abs(expected[token] - logprob) for token, logprob in logprobs.items()]
            # np.maximum, unlike max, keeps NaN.
            worst_gap = float(np.maximum(worst_gap, gap))
            worst_error = float(np.maximum(worst_error, np.max(errors)))
    return TokenCheck(
        reference=reference,
        compared=compared,
        equal=equal,
        ties=ties,
        worst_gap=worst_gap,
        worst_logprob_error=worst_error,
        divergence=float(np.mean(divergences)),
        usual_divergence=None if bound is None else bound.usual,
        allowed_divergence=None if bound is None else bound.largest,
        tolerance=tolerance,
        required=required,
    )


def log_softmax(logits: FloatArray) -> FloatArray:
    """Return log-probabilities along the last axis."""
    shifted = logits - logits.max(axis=-1, keepdims=True)
    normalised: FloatArray = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return normalised


def _generated_tokens(model: ModelSpec) -> int:
    return min(_GENERATED_TOKENS, max(1, model.max_seq_len - 1))
