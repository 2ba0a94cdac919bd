"""End-to-end check: the bundle's greedy tokens at full depth against Hugging Face's logits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...engines.backends.session import open_backend
from ...engines.bundle import EngineBundle
from ...engines.manifest import EngineKind, KVType, ModelSpec, PrecisionSpec, kv_width
from ...engines.memory import numpy_dtype
from ...runtime.generator import Generator
from ...runtime.tokens.sampling import SamplingParams
from .calls import EngineCalls
from .hugging_face import pad_right
from .report import TokenCheck
from .tolerance import DivergenceBound, divergence

_PROMPT_LENGTHS = (1, 12, 5, 8)
_GENERATED_TOKENS = 32
_REPORTED_LOGPROBS = 20  # they contain most of a trained model's probability

FloatArray = NDArray[np.float32]

# Where rounding changes logits much, two ways of rounding cause errors of the same scale, but not
# equal ones: of two normal numbers, the first exceeds eight times the second in 8 % of cases, and
# twice the second in 30 %.
_SENSITIVE = 8


@dataclass(frozen=True)
class GreedyText:
    """Tokens that the bundle read, and those it chose after each of the last ``len(chosen)``.

    ``logprobs[i]`` maps the most probable tokens at that position, and the chosen one, to their
    log-probabilities.
    """

    read: tuple[int, ...]
    chosen: tuple[int, ...]
    logprobs: tuple[dict[int, float], ...]


def token_tolerance(precision: PrecisionSpec) -> float:
    """Return the largest allowed difference of logits, as a fraction of max |logit|.

    Where outliers make a position of random tokens sensitive, float16 is off by 0.0058, and by
    0.0043 in PyTorch (SmolLM2-135M). Some positions are even more sensitive: see `compare_tokens`.
    """
    allowed = {"float32": 1e-4, "float16": 1e-2, "bfloat16": 4e-2, "int8": 4e-2}
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
    """Continue random prompts in one ragged batch with Generator, as users do.

    Engines built for fewer rows run smaller batches.
    """
    model, build = bundle.manifest.model, bundle.manifest.build
    prompts = random_prompts(model, seed, None if build is None else build.max_prompt_len)
    return written_texts(bundle, prompts, _generated_tokens(model), ignore_eos=True)


def written_texts(
    bundle: EngineBundle,
    prompts: Sequence[Sequence[int]],
    max_tokens: int,
    *,
    ignore_eos: bool = False,
) -> list[GreedyText]:
    """Return the greedy text after each prompt, at full depth and up to an end of text."""
    model, build = bundle.manifest.model, bundle.manifest.build
    params = SamplingParams.fixed(
        temperature=0.0,
        max_tokens=max_tokens,
        ignore_eos=ignore_eos,
        logprobs=min(_REPORTED_LOGPROBS, model.vocab_size),
    )
    rows = len(prompts) if build is None else min(len(prompts), build.max_batch_size)
    backend = open_backend(bundle.manifest.target)
    with Generator(bundle, backend, schedule="full", max_batch_size=rows) as generator:
        outputs = generator.generate([list(prompt) for prompt in prompts], params)
    texts = []
    for prompt, output in zip(prompts, outputs, strict=True):
        completion = output.outputs[0]
        assert completion.logprobs is not None
        logprobs = tuple({k: v.logprob for k, v in at.items()} for at in completion.logprobs)
        read = (*prompt, *completion.token_ids[:-1])  # the last token was never fed back
        texts.append(GreedyText(read, completion.token_ids, logprobs))
    return texts


def text_from_logits(tokens: Sequence[int], logits: FloatArray) -> GreedyText:
    """Return what a bundle too large to generate would choose after each of ``tokens``.

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

    ``load(kind, layer_index)`` loads an engine; ``kv_dtype`` is that of its KV cache.
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


def compare_tokens(
    texts: Sequence[GreedyText],
    reference_logits: Sequence[FloatArray],
    relative_tolerance: float,
    *,
    required: bool,
    bound: DivergenceBound | None = None,
    rounded_logits: Sequence[FloatArray] | None = None,
) -> TokenCheck:
    """Compare each generated token with the reference's choice at its position.

    ``reference_logits[r]`` is [tokens read of row r, V]. ``bound`` is for quantised bundles.
    ``rounded_logits`` come from a reference that computes in the bundle's float type: the bundle
    may be off by `_SENSITIVE` times its error if that exceeds the tolerance.
    """
    largest = relative_tolerance * max(float(np.abs(each).max()) for each in reference_logits)
    others = reference_logits if rounded_logits is None else rounded_logits
    places: list[_Place] = []
    for text, logits, rounded in zip(texts, reference_logits, others, strict=True):
        last = slice(-len(text.chosen), None)
        found = zip(text.chosen, text.logprobs, logits[last], rounded[last], strict=True)
        places += (_compare_place(*each, largest) for each in found)
    worst = max(places, key=lambda place: np.nan_to_num(place.error - place.allowed, nan=np.inf))
    return TokenCheck(
        compared=len(places),
        equal=sum(place.gap == 0.0 for place in places),
        ties=sum(0.0 < place.gap <= place.allowed for place in places),
        worst_gap=float(np.max([place.gap for place in places])),  # unlike max, it keeps NaN
        worst_logprob_error=worst.error,
        divergence=float(np.mean([place.divergence for place in places])),
        usual_divergence=None if bound is None else bound.usual,
        allowed_divergence=None if bound is None else bound.largest,
        tolerance=worst.allowed,
        required=required,
    )


class _Place(NamedTuple):
    """One generated token against the reference.

    ``gap``: by how much the reference prefers another token, in logits; ``error``: the largest
    difference of the reported log-probabilities; ``allowed``: the tolerance of both.
    """

    gap: float
    error: float
    allowed: float
    divergence: float


def _compare_place(
    chosen: int,
    logprobs: Mapping[int, float],
    logits: FloatArray,
    rounded: FloatArray,
    largest: float,
) -> _Place:
    """Compare one token with the reference's ``logits`` [V]; arguments as in `compare_tokens`."""
    expected, moved = (log_softmax(row.astype(np.float64)) for row in (logits, rounded))
    by_rounding = float(np.abs(expected - moved)[list(logprobs)].max())
    return _Place(
        gap=float(logits.max() - logits[chosen]),
        error=float(np.max([abs(expected[token] - each) for token, each in logprobs.items()])),
        allowed=max(largest, _SENSITIVE * by_rounding),
        divergence=divergence(expected, logprobs),
    )


def log_softmax(logits: FloatArray) -> FloatArray:
    """Return log-probabilities along the last axis."""
    shifted = logits - logits.max(axis=-1, keepdims=True)
    normalised: FloatArray = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return normalised


def _generated_tokens(model: ModelSpec) -> int:
    return min(_GENERATED_TOKENS, max(1, model.max_seq_len - 1))
