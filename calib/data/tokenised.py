"""Tokenises examples: wraps prompts in a template and cuts texts to the maximum length."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from statistics import median_low
from typing import Self

from ...engines.errors import UsageError
from ...engines.manifest import PROMPT_PLACEHOLDER, ModelSpec
from ...runtime.tokens.tokenizer import Tokenizer
from .chats import Conversation, Prompt, require_template
from .data import DataConfig, Example, LongPrompts
from .rows import raise_problems


@dataclass(frozen=True)
class PromptTemplate:
    """Template of all prompts. ``is_models``: the model's own, which reading data did not apply.

    ``note`` tells the user which template applies; None if only one was possible. ``is_unused``:
    all prompts are chats, which have a template of their own.
    """

    text: str = PROMPT_PLACEHOLDER
    is_models: bool = False
    note: str | None = None
    is_unused: bool = False

    @classmethod
    def choose(cls, data: DataConfig, models: str | None) -> PromptTemplate:
        """Return the template of a preset or option, else ``models``, the model's own.

        Without either, prompts stay unchanged. ``load_examples`` has already applied the data's.
        """
        named = data.columns().prompt_template
        if named is None:
            if models is None:
                return cls()
            note = (
                f"prompts are put into {models!r}, as the model was tuned; "
                "--prompt-template '{prompt}' leaves them unchanged"
            )
            return cls(models, is_models=True, note=note)
        if models in (None, named):
            return cls(named)
        return cls(
            named, note=f"prompts are put into {named!r}; the model was tuned with {models!r}"
        )

    def used_for(self, prompts: Iterable[Prompt]) -> PromptTemplate:
        """Return the template, marked as unused if all ``prompts`` are chats."""
        if any(isinstance(prompt, str) for prompt in prompts):
            return self
        return replace(self, note=None, is_unused=True)

    def apply(self, prompt: str) -> str:
        """Return a prompt from the data in the form that the model reads."""
        return self.text.replace(PROMPT_PLACEHOLDER, prompt) if self.is_models else prompt


NO_TEMPLATE = PromptTemplate()


@dataclass(frozen=True)
class TokenisedExample:
    """One example as token ids.

    The completion ends with the end-of-text token unless it was cut at the maximum length or is a
    passage from a longer text.
    """

    prompt_token_ids: tuple[int, ...]
    completion_token_ids: tuple[int, ...]
    source: str

    def __len__(self) -> int:
        return len(self.prompt_token_ids) + len(self.completion_token_ids)


@dataclass(frozen=True)
class TokenisedData:
    """All examples in order, and how many exceeded the maximum length.

    ``num_truncated`` completions and ``num_cut`` prompts were cut, ``num_dropped`` rows left out.
    ``template`` wraps all prompts; ``advice`` ends the warning about cut completions.
    """

    examples: tuple[TokenisedExample, ...]
    num_truncated: int
    num_cut: int = 0
    num_dropped: int = 0
    template: PromptTemplate = NO_TEMPLATE
    advice: str = ""

    @property
    def median_completion(self) -> int:
        """Tokens of the median completion, with its end: SkipDecode's choice of horizon."""
        return median_low(len(example.completion_token_ids) for example in self.examples)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings about the prompt template and about rows that are too long."""
        warnings = [] if self.template.note is None else [self.template.note]
        kept = len(self.examples)
        if self.num_dropped:
            total = kept + self.num_dropped
            warnings.append(f"left out, too long: {self.num_dropped} of {total} rows")
        if self.num_cut:
            warnings.append(f"cut, too long: {self.num_cut} of {kept} prompts")
        if self.num_truncated:
            warnings.append(
                f"cut off at the maximum length: {self.num_truncated} of {kept} completions; "
                f"shorten or remove these rows{self.advice}"
            )
        return tuple(warnings)

    @property
    def digest(self) -> str:
        """SHA-256 of all token ids; shows whether a resumed run has the same data."""
        digest = sha256()
        for example in self.examples:
            digest.update(repr((example.prompt_token_ids, example.completion_token_ids)).encode())
        return digest.hexdigest()


@dataclass(frozen=True)
class ExampleEncoder:
    """Encodes examples with a model's tokenizer and template, within its limits.

    A text ends with the first of ``end_token_ids``; a chat ends with what its template writes. With
    ``long_prompts`` "cut", a prompt that leaves too little room within ``max_length`` tokens loses
    its last words, inside ``template``, down to half of that length. Prompts of chats stay whole.
    """

    tokenizer: Tokenizer
    end_token_ids: Sequence[int]
    vocab_size: int
    max_length: int
    long_prompts: LongPrompts = "refuse"
    template: PromptTemplate = NO_TEMPLATE

    @classmethod
    def of(
        cls, model: ModelSpec, tokenizer: Tokenizer, data: DataConfig, models_template: str | None
    ) -> Self:
        """Return the encoder of ``data`` for ``model``, tuned with ``models_template``, if any."""
        return cls(
            tokenizer,
            model.end_token_ids,
            model.vocab_size,
            model.max_seq_len,
            data.long_prompts,
            PromptTemplate.choose(data, models_template),
        )

    def encode(self, example: Example) -> tuple[tuple[int, ...], tuple[int, ...], bool]:
        """Return the ids of prompt and completion, and whether the prompt was cut.

        Raises UsageError for messages that the chat template refuses, for a text without tokens,
        and for a token beyond the rows of the model's embedding.
        """
        prompt, completion = encode_example(
            example, self.tokenizer, self.template, self.end_token_ids
        )
        for name, token_ids in (("prompt", prompt), ("completion", completion)):
            if not token_ids:
                raise UsageError(f"the {name}", "has no tokens; remove the row")
        self._require_embedded((*prompt, *completion))
        if self.long_prompts != "cut":
            return prompt, completion, False
        kept = self._cut_to_fit(example, prompt, len(completion))
        return kept, completion, kept is not prompt

    def _require_embedded(self, token_ids: Iterable[int]) -> None:
        beyond = next((token_id for token_id in token_ids if token_id >= self.vocab_size), None)
        if beyond is not None:
            raise UsageError(
                "the text",
                f"has token {beyond} ({self.tokenizer.token_text(beyond)!r:.80}), beyond the "
                f"{self.vocab_size:,} rows of the model's embedding; remove it, or use the "
                "tokenizer that the model was trained with",
            )

    def _cut_to_fit(
        self, example: Example, token_ids: tuple[int, ...], completion: int
    ) -> tuple[int, ...]:
        """Return the ids of the prompt, cut so that ``completion`` more tokens fit.

        The prompt, ``token_ids`` as a whole, may always take half of ``max_length``. Words are
        dropped at the end of the text that ``template`` wraps: "one two three\\nTLDR" from the
        template "{prompt}\\nTLDR", cut to 3 tokens of a word each, becomes "one two\\nTLDR". A
        first word that does not fit, such as a text without blanks, is cut between characters.
        Returns ``token_ids`` if nothing has to be cut, if not even one character would fit, and for
        chats.
        """
        allowed = self.max_length - min(completion, self.max_length // 2)
        if len(token_ids) <= allowed or not isinstance(example.prompt, str):
            return token_ids
        before, after = self.template.text.split(PROMPT_PLACEHOLDER)
        prompt = self.template.apply(example.prompt)
        text = prompt[len(before) : len(prompt) - len(after)]

        def cut_at(end: int) -> list[int]:
            return self.tokenizer.encode(before + text[:end] + after)

        words = [word.end() for word in re.finditer(r"\S+", text)]
        for ends in (words, range(1, len(text))):
            if kept := bisect_right(ends, allowed, key=lambda end: len(cut_at(end))):
                return tuple(cut_at(ends[kept - 1]))
        return token_ids


def tokenise(examples: Sequence[Example], encoder: ExampleEncoder) -> TokenisedData:
    """Tokenise prompts with special tokens, completions without, and append the end of text.

    An example with ``ends`` False gets no end, so that a model does not learn to stop mid-text.

    Tokens match those of generation: with a tokenizer that adds ``<s>``, the prompt ``name[A]`` is
    [0, 84, …] and the completion ``A pub`` [31, 7, 2]. Completions are cut so that prompt and
    completion fit ``max_length`` tokens; with ``long_prompts`` "drop", longer rows are left out.
    Raises one UsageError with the line of every prompt that leaves no room for a completion and of
    every row that ``encoder`` refuses, and another for chats without a template.
    """
    sources = ((example.prompt, example.source) for example in examples)
    require_template(sources, encoder.tokenizer)
    tokenised: list[TokenisedExample] = []
    problems: list[str] = []
    num_truncated = num_cut = num_dropped = 0
    max_length, advice = encoder.max_length, long_advice(encoder.long_prompts)
    for example in examples:
        try:
            prompt, whole, is_cut = encoder.encode(example)
        except UsageError as error:
            problems += [f"{example.source}: {error.subject} {text}" for text in error.problems]
            continue
        if encoder.long_prompts == "drop" and len(prompt) + len(whole) > max_length:
            num_dropped += 1
            continue
        num_cut += is_cut
        room = max_length - len(prompt)
        if room < 1:
            problems.append(
                f"{example.source}: the prompt has {len(prompt)} tokens; allowed: at most "
                f"{max_length - 1}, one less than the maximum length; shorten or remove the "
                f"row{advice}"
            )
        num_truncated += len(whole) > room
        tokenised.append(TokenisedExample(prompt, whole[: max(room, 0)], example.source))
    raise_problems("data", problems)
    template = encoder.template.used_for(example.prompt for example in examples)
    if not tokenised:
        dropped = f" within {max_length} tokens; {num_dropped} are longer" if num_dropped else ""
        raise UsageError("data", f"has no examples{dropped}; give at least one")
    return TokenisedData(tuple(tokenised), num_truncated, num_cut, num_dropped, template, advice)


def encode_example(
    example: Example,
    tokenizer: Tokenizer,
    template: PromptTemplate,
    end_token_ids: Sequence[int],
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the ids of the prompt in ``template``, and of the completion with its end.

    Without ``end_token_ids``, no end is added. Raises UsageError for messages that the chat
    template refuses.
    """
    if isinstance(example.prompt, Conversation):
        chat = example.prompt.encode(example.completion, tokenizer, end_token_ids)
        return chat.prompt.token_ids, chat.answer_token_ids
    prompt = tokenizer.encode(template.apply(example.prompt))
    completion = tokenizer.encode(example.completion, add_special_tokens=False)
    return tuple(prompt), (*completion, *(end_token_ids[:1] if example.ends else ()))


def long_advice(long_prompts: LongPrompts) -> str:
    """Return the end of advice on rows that are too long: the option, unless it is already set."""
    return ", or set the data's long_prompts" if long_prompts == "refuse" else ""
