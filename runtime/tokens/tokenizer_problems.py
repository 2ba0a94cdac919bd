"""Reasons to refuse a tokenizer.json: it is ambiguous, or it lengthens texts too much."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import tokenizers

from ...engines.documents import EXACT
from ...engines.manifest import MAX_TOKENS
from .decoding import component_steps

_COMPONENTS = ("model", "normalizer", "pre_tokenizer", "post_processor", "decoder")
_POST_PROCESSORS = (
    *("BertProcessing", "ByteLevel", "RobertaProcessing", "Sequence", "TemplateProcessing"),
)
_MOST_GROWTH = 100  # times
_PRECOMPILED_GROWTH = 4  # times; that of SentencePiece's nmt_nfkc is 18 for a single character


def tokenizer_problem(content: bytes, tokenizer: tokenizers.Tokenizer) -> str | None:
    """Return why a tokenizer.json is refused, or None; ``tokenizer`` was read from it.

    Readers may disagree on its meaning: the library takes the last of two equal members, ids or
    added tokens, guesses the type of a component without one, and omits undescribed tokens of a
    template. libskipdec refuses all of these.
    """
    try:
        document = json.loads(content, **EXACT)
    except (ValueError, RecursionError) as error:
        return str(error)
    return next(_problems(document), None) or _growth(tokenizer) or _ambiguity(tokenizer)


def normalized_contents(tokenizer: tokenizers.Tokenizer) -> Counter[str]:
    """Count the texts that added tokens with the flag ``normalized`` match."""
    normalizer = tokenizer.normalizer
    contents = [
        token.content for token in tokenizer.get_added_tokens_decoder().values() if token.normalized
    ]
    return Counter(contents if normalizer is None else map(normalizer.normalize_str, contents))


def _growth(tokenizer: tokenizers.Tokenizer) -> str | None:
    """Return why a short text may take unbounded memory, if it may: replacements multiply."""
    for name in ("normalizer", "decoder"):
        most = math.prod(map(_lengthening, component_steps(getattr(tokenizer, name))))
        if most > _MOST_GROWTH:
            return (
                f"its {name} may make a text {most:.2g} times as long; allowed: {_MOST_GROWTH} "
                "times"
            )
    return None


def _lengthening(step: Mapping[str, Any]) -> int:
    """Return how many times as long, in characters, a step may make a text."""
    if step["type"] == "Precompiled":  # each character has a replacement of its own
        return _PRECOMPILED_GROWTH
    if step["type"] != "Replace":
        return 1
    content, pattern = len(step["content"]), len(step["pattern"].get("String") or "")
    return max(1, -(-content // pattern)) if pattern else 1 + content  # "" matches everywhere


def _ambiguity(tokenizer: tokenizers.Tokenizer) -> str | None:
    """Return why the library's choice of an added token is random, if it is."""
    for text, count in normalized_contents(tokenizer).items():
        if count > 1:
            return f"{count} of its added_tokens are {text!r:.80} after the normalizer"
    return None


def _problems(document: Mapping[str, Any]) -> Iterator[str]:
    for name in _COMPONENTS:
        component = document.get(name)
        if not isinstance(component, dict | None):
            yield f"its {name} is {component!r:.80}; allowed: an object or null"
        elif component and not isinstance(component.get("type", ""), str):
            yield f"its {name} has the type {component['type']!r:.80}; allowed: a name"
    yield from _vocabulary_problems(document["model"].get("vocab"))
    yield from _repeated_tokens(document.get("added_tokens") or ())
    if (processor := document.get("post_processor")) is not None:
        yield from _processor_problems(processor)


def _vocabulary_problems(vocabulary: Any) -> Iterator[str]:  # noqa: ANN401  (any JSON value)
    if not isinstance(vocabulary, dict) or not vocabulary:
        return
    if (largest := max(vocabulary.values())) >= MAX_TOKENS:
        yield f"its vocabulary has the id {largest}; allowed: below {MAX_TOKENS}"
    if len(set(vocabulary.values())) < len(vocabulary):
        token_id, _ = Counter(vocabulary.values()).most_common(1)[0]
        yield f"two tokens of its vocabulary have the id {token_id}"


def _repeated_tokens(added: Any) -> Iterator[str]:  # noqa: ANN401  (any JSON value)
    for content, count in Counter(token["content"] for token in added).items():
        if count > 1 and content:
            yield f"its added_tokens have {content!r:.80} twice"


def _processor_problems(processor: Any) -> Iterator[str]:  # noqa: ANN401  (any JSON value)
    kind = processor.get("type") if isinstance(processor, dict) else None
    if kind not in _POST_PROCESSORS:
        yield f"a post-processor has the type {kind!r:.80}; allowed: {', '.join(_POST_PROCESSORS)}"
    elif kind == "Sequence":
        for inner in processor["processors"]:
            yield from _processor_problems(inner)
    elif kind == "TemplateProcessing":
        yield from _template_problems(processor)


def _template_problems(processor: Mapping[str, Any]) -> Iterator[str]:
    described = processor["special_tokens"]
    for name in ("single", "pair"):
        for part in processor[name]:
            inner = next(iter(part.values())) if isinstance(part, dict) else part
            if not isinstance(inner, dict):
                yield f"a part of its template {name!r} is {part!r:.80}; allowed: an object"
            elif name == "single" and "Sequence" in part and inner["id"] != "A":
                yield "its template for one text has a second one"
            elif name == "single" and "SpecialToken" in part and inner["id"] not in described:
                yield f"its template has the token {inner['id']!r:.80}, which is not described"
