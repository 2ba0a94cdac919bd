"""Prompts of an evaluation with their references, as text and as a bundle's tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean

from ...engines.bundle import EngineBundle
from ...engines.manifest import ModelSpec
from ...runtime.tokens.tokenizer import Tokenizer
from ..data.data import DataConfig, group_references, load_examples
from ..data.long_prompts import LongPrompts, cut_to_fit
from ..data.templates import PromptTemplate


@dataclass(frozen=True)
class ReferencedPrompt:
    """One distinct prompt with all its references."""

    text: str
    references: tuple[str, ...]
    source: str  # the first row, such as "dev.csv, line 7"
    ends: bool = True  # False: a passage from a longer text


@dataclass(frozen=True)
class EncodedPrompt:
    """A prompt and its references, encoded with one bundle's tokenizer."""

    token_ids: tuple[int, ...]
    target_ids: tuple[int, ...]  # the first reference and, unless the text goes on, the end of text
    references: tuple[str, ...]
    reference_tokens: float  # mean over the references, without the end of text
    max_length: int  # number of positions in the bundle
    is_cut: bool = False  # the prompt lost words to fit

    @property
    def num_tokens(self) -> int:
        """Number of tokens in the prompt and its first reference."""
        return len(self.token_ids) + len(self.target_ids)

    @property
    def fits(self) -> bool:
        """True if the bundle can score the first reference."""
        return self.num_tokens <= self.max_length


def read_prompts(data: DataConfig, limit: int | None = None) -> tuple[ReferencedPrompt, ...]:
    """Return the first ``limit`` distinct prompts of the file, each with all its references.

    Passages of a text are never references of one another, even if their prompts are equal.
    """
    examples = load_examples(data)
    if not all(example.ends for example in examples):
        return tuple(
            ReferencedPrompt(example.prompt, (example.completion,), example.source, example.ends)
            for example in examples[:limit]
        )
    sources: dict[str, str] = {}
    for example in examples:
        sources.setdefault(example.prompt, example.source)
    groups = group_references(examples)[:limit]
    return tuple(ReferencedPrompt(text, references, sources[text]) for text, references in groups)


def encode_prompts(
    bundle: EngineBundle,
    prompts: Sequence[ReferencedPrompt],
    template: PromptTemplate,
    long_prompts: LongPrompts,
) -> tuple[EncodedPrompt, ...] | None:
    """Encode all prompts, in ``template``, for ``bundle``; None if it has no tokenizer.

    If ``long_prompts`` is "cut", a prompt that leaves no room for its first reference loses words
    at its end, down to half of the bundle's positions.
    """
    tokenizer, model = Tokenizer.of(bundle), bundle.manifest.model
    if tokenizer is None:
        return None
    cut = long_prompts == "cut"
    return tuple(_encode(prompt, tokenizer, model, template, cut=cut) for prompt in prompts)


def _encode(
    prompt: ReferencedPrompt,
    tokenizer: Tokenizer,
    model: ModelSpec,
    template: PromptTemplate,
    *,
    cut: bool,
) -> EncodedPrompt:
    """Encode prompt and references; a passage that goes on is cut where the positions end."""
    references = [tokenizer.encode(text, add_special_tokens=False) for text in prompt.references]
    text = template.apply(prompt.text)
    token_ids = tuple(tokenizer.encode(text))
    end = () if model.eos_token_id is None or not prompt.ends else (model.eos_token_id,)
    target_ids = (*references[0], *end)
    shorter = None
    if cut:
        shorter = cut_to_fit(
            text,
            template.text,
            tokenizer,
            num_tokens=len(token_ids),
            completion=len(target_ids),
            max_length=model.max_seq_len,
        )
    token_ids = shorter or token_ids
    if not prompt.ends:
        target_ids = target_ids[: max(1, model.max_seq_len - len(token_ids))]
    return EncodedPrompt(
        token_ids=token_ids,
        target_ids=target_ids,
        references=prompt.references,
        reference_tokens=mean(map(len, references)),
        max_length=model.max_seq_len,
        is_cut=shorter is not None,
    )
