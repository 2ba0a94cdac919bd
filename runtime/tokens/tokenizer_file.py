"""Refuses contents of tokenizer.json that the tokenizers library would accept."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from ...engines.documents import EXACT
from ...engines.manifest import MAX_TOKENS

_COMPONENTS = ("model", "normalizer", "pre_tokenizer", "post_processor", "decoder")
_POST_PROCESSORS = (
    *("BertProcessing", "ByteLevel", "RobertaProcessing", "Sequence", "TemplateProcessing"),
)


def tokenizer_problem(content: bytes) -> str | None:
    """Say why readers may disagree on what a tokenizer.json means; None where they can't.

    The library takes the last of two members, ids or added tokens, guesses the type of a component
    that names none, and leaves out a template's tokens that are not described. libskipdec refuses
    all of these.
    """
    try:
        document = json.loads(content, **EXACT)
    except (ValueError, RecursionError) as error:
        return str(error)
    return next(_problems(document), None)


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
