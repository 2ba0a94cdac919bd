"""Check and tokenise the inputs of an evaluation before any engine is loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import compress, islice
from math import ceil
from statistics import mean

from ...engines.bundle import EngineBundle
from ...engines.checking import Problems
from ...engines.errors import ScheduleError, UsageError
from ...runtime.drafting.config import DraftConfig
from ...runtime.drafting.resolver import DraftResolver
from ...runtime.schedule import ExitSchedule
from ...runtime.schedule.bundle import bundle_schedule
from ...runtime.schedule.request_schedules import default_horizon
from ...runtime.schedule.text import format_schedule, parse_schedule
from ...runtime.tokens.tokenizer import Tokenizer
from ..data.chats import Prompt, require_template
from ..data.data import DataConfig, Example, load_examples
from ..data.rows import raise_problems
from ..data.tokenised import ExampleEncoder, PromptTemplate, long_advice
from .config import BundleChoice, EvaluationConfig

_ROOM_OVER_REFERENCES = 1.5  # of the default max_tokens; untuned models generate longer texts


@dataclass(frozen=True)
class PreparedBundle:
    """One bundle with its prompts and schedules, fully checked."""

    choice: BundleChoice
    bundle: EngineBundle
    schedules: Mapping[ExitSchedule, str]  # full depth first, each with its name as given
    prompts: tuple[EncodedPrompt, ...]
    max_tokens: int
    template: PromptTemplate
    drafts: Mapping[str, DraftConfig] = field(default_factory=dict)  # by name as given

    @property
    def num_cut(self) -> int:
        """Number of prompts that lost words to fit this bundle."""
        return sum(prompt.is_cut for prompt in self.prompts)

    def room(self, prompt: EncodedPrompt) -> int:
        """Return ``max_tokens``, or the positions that ``prompt`` leaves in the bundle if fewer."""
        left = self.bundle.manifest.model.max_seq_len - len(prompt.token_ids)
        return min(self.max_tokens, left)


@dataclass(frozen=True)
class EvaluationInputs:
    """All prompts, and each bundle with its own tokens for them."""

    prompts: tuple[ReferencedPrompt, ...]
    bundles: tuple[PreparedBundle, ...]
    num_dropped: int = 0  # prompts that do not fit at least one bundle

    @property
    def notes(self) -> list[str]:
        """Notes on prompt templates whose choice may surprise the user."""
        return [
            f"{prepared.choice.label}: {prepared.template.note}"
            for prepared in self.bundles
            if prepared.template.note is not None
        ]


def prepare(config: EvaluationConfig) -> EvaluationInputs:
    """Read the data, open the bundles, parse schedules and tokenise; load no engine.

    Raises one SkipDecError with every problem found: the line of each bad row; bundles that can't
    be opened or have no tokenizer; schedules that do not fit a bundle's depth; and, unless the
    data's ``long_prompts`` is "drop", the line of each prompt without room for its reference.
    """
    problems = Problems("evaluate")
    prompts = problems.attempt(read_prompts, config.data, config.limit) or ()
    opened = [
        (choice, bundle)
        for choice in config.bundles
        if (bundle := problems.attempt(EngineBundle.open, choice.path)) is not None
    ]
    encodings = [
        problems.attempt(encode_prompts, bundle, prompts, config.data) for _, bundle in opened
    ]
    kept: Sequence[bool] = [True] * len(prompts)
    if config.data.long_prompts == "drop":
        kept = [
            all(not encoded or encoded[index].fits for encoded in encodings)
            for index in range(len(prompts))
        ]
        if prompts and not any(kept):
            none_fits = f"has no prompts that fit; all {len(prompts)} are too long"
            problems.errors.append(UsageError("data", none_fits))
    prompts = tuple(compress(prompts, kept))
    prepared = []
    for (choice, bundle), encoded in zip(opened, encodings, strict=True):
        own = tuple(compress(encoded or (), kept))
        ready = problems.attempt(_prepare_bundle, config, choice, bundle, prompts, own)
        if ready is not None:
            prepared.append(ready)
    if problems.errors:
        raise problems.error()
    return EvaluationInputs(prompts, tuple(prepared), num_dropped=kept.count(False))


def _prepare_bundle(
    config: EvaluationConfig,
    choice: BundleChoice,
    bundle: EngineBundle,
    prompts: Sequence[ReferencedPrompt],
    encoded: tuple[EncodedPrompt, ...],
) -> PreparedBundle:
    """Return one prepared bundle; ``encoded`` is empty if rows or tokenizer can't be read.

    Raises UsageError.
    """
    max_tokens = config.max_tokens or bundle.manifest.model.max_seq_len
    if encoded and config.max_tokens is None:
        longest = max(tokens.longest_reference for tokens in encoded)
        max_tokens = ceil(_ROOM_OVER_REFERENCES * (longest + 1))
    schedules, problems = _schedules(config.schedules, bundle, max_tokens)
    if bundle.manifest.tokenizer is None:
        problems.append(
            "has no tokenizer, and metrics need texts; export it from a checkpoint with "
            "tokenizer.json"
        )
    drafts, draft_problems = _drafts(config.drafts, bundle)
    advice = long_advice(config.data.long_prompts)
    problems += draft_problems
    problems += [
        f"{prompt.source}: prompt and first reference have {tokens.num_tokens} tokens; the bundle "
        f"holds {tokens.max_length} positions; shorten or remove the row{advice}"
        for prompt, tokens in zip(prompts, encoded, strict=False)
        if not tokens.fits
    ]
    raise_problems(str(choice.path), problems)
    template = PromptTemplate.choose(config.data, bundle.manifest.prompt_template).used_for(
        prompt.prompt for prompt in prompts
    )
    return PreparedBundle(choice, bundle, schedules, encoded, max_tokens, template, drafts)


def _schedules(
    texts: Sequence[str], bundle: EngineBundle, max_tokens: int
) -> tuple[dict[ExitSchedule, str], list[str]]:
    """Return full depth and the requested schedules without duplicates, and the problems."""
    num_layers = bundle.manifest.model.num_layers
    own = bundle_schedule(bundle)
    schedules = {ExitSchedule.full(num_layers): "full"}
    if not texts:
        schedules.setdefault(own, format_schedule(own))
    problems = []
    for text in texts:
        horizon = default_horizon(own, max_tokens)
        try:
            schedule = parse_schedule(text, num_layers=num_layers, horizon=horizon)
        except ScheduleError as error:
            problems += [f"{error.subject} {problem}" for problem in error.problems]
        else:
            schedules.setdefault(schedule, text)
    return schedules, problems


def _drafts(texts: Sequence[str], bundle: EngineBundle) -> tuple[dict[str, DraftConfig], list[str]]:
    """Return the drafts that the bundle can run on a CPU, and the problems with the others."""
    resolver = DraftResolver(bundle.manifest)
    drafts: dict[str, DraftConfig] = {}
    problems = []
    for text in texts:
        try:
            draft = resolver.resolve(text)
        except UsageError as error:
            problems += [f"draft {text}: {problem}" for problem in error.problems]
        else:
            if draft is None:
                problems.append(f"draft {text}: the bundle recommends none; name drafts")
            else:
                drafts[text] = draft
    return drafts, problems


@dataclass(frozen=True)
class ReferencedPrompt:
    """One distinct prompt with all its references."""

    prompt: Prompt
    references: tuple[str, ...]
    source: str  # the first row, such as "dev.csv, line 7"
    ends: bool = True  # False: a passage from a longer text

    @property
    def text(self) -> str:
        """The prompt for people; for a chat, its messages."""
        return str(self.prompt)

    @property
    def example(self) -> Example:
        """The prompt with its first reference."""
        return Example(self.prompt, self.references[0], self.source, self.ends)


@dataclass(frozen=True)
class EncodedPrompt:
    """A prompt and its references, encoded with one bundle's tokenizer."""

    token_ids: tuple[int, ...]
    target_ids: tuple[int, ...]  # the first reference and, unless the text goes on, the end of text
    references: tuple[str, ...]
    reference_tokens: float  # mean over the references, without the end of text
    longest_reference: int  # in tokens of the same tokenizer
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


def read_prompts(data: DataConfig, limit: int | None) -> tuple[ReferencedPrompt, ...]:
    """Return the first ``limit`` distinct prompts of the file, each with all its references.

    Passages of a text are never references of one another, even if they have equal prompts.
    """
    examples = load_examples(data)
    if not all(example.ends for example in examples):
        return tuple(
            ReferencedPrompt(example.prompt, (example.completion,), example.source, example.ends)
            for example in examples[:limit]
        )
    groups: dict[Prompt, list[Example]] = {}
    for example in examples:
        groups.setdefault(example.prompt, []).append(example)
    return tuple(
        ReferencedPrompt(prompt, tuple(each.completion for each in rows), rows[0].source)
        for prompt, rows in islice(groups.items(), limit)
    )


def encode_prompts(
    bundle: EngineBundle, prompts: Sequence[ReferencedPrompt], data: DataConfig
) -> tuple[EncodedPrompt, ...] | None:
    """Encode all prompts for ``bundle``; None if it has no tokenizer.

    Raises UsageError with the line of every row that the bundle's `ExampleEncoder` refuses, and for
    chats without a template.
    """
    tokenizer, model = Tokenizer.of(bundle), bundle.manifest.model
    if tokenizer is None:
        return None
    encoder = ExampleEncoder.of(model, tokenizer, data, bundle.manifest.prompt_template)
    subject = str(bundle.path)
    encoded, problems = [], list[str]()
    with closing(tokenizer):
        require_template(((prompt.prompt, prompt.source) for prompt in prompts), tokenizer, subject)
        for prompt in prompts:
            references = [
                tokenizer.encode(each, add_special_tokens=False) for each in prompt.references
            ]
            try:
                token_ids, target_ids, is_cut = encoder.encode(prompt.example)
            except UsageError as error:
                problems += [f"{prompt.source}: {error.subject} {text}" for text in error.problems]
                continue
            if not prompt.ends:  # the passage is cut at the bundle's last position
                target_ids = target_ids[: max(1, model.max_seq_len - len(token_ids))]
            encoded.append(
                EncodedPrompt(
                    token_ids=token_ids,
                    target_ids=target_ids,
                    references=prompt.references,
                    reference_tokens=mean(map(len, references)),
                    longest_reference=max(map(len, references)),
                    max_length=model.max_seq_len,
                    is_cut=is_cut,
                )
            )
    raise_problems(subject, problems)
    return tuple(encoded)
