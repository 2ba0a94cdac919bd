"""Options and inputs of a fit of drafts, checked before any engine is loaded."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from types import MappingProxyType

from pydantic import Field, field_validator

from ....engines.bundle import EngineBundle
from ....engines.checking import Problems, ValidatedConfig
from ....engines.errors import UsageError
from ....runtime.drafting.bundle import draft_resolver
from ....runtime.drafting.config import (
    DraftConfig,
    DraftPart,
    canonical_drafts,
    is_auto,
    parse_draft,
)
from ....runtime.drafting.resolver import DraftResolver
from ....runtime.measuring.meter import SECONDS
from ....runtime.schedule import LayerPlan
from ....runtime.tokens.tokenizer import Tokenizer
from ...data.data import DataConfig, Example, load_examples
from ...data.tokenised import PromptTemplate, TokenisedData, tokenise

_LAYERS = (2, 3, 4, 6)  # that default candidates run, at most half of the model's
_ROOM_OVER_COMPLETIONS = 1.5  # of the texts; as in an evaluation
_LEAST_PROMPTS = 4


class LosslessConfig(ValidatedConfig):
    """Options of `fit_drafts`.

    ``drafts`` are the candidates; by default n-grams of own texts and of the prompt, and layers of
    several placements, alone and behind own n-grams. Of ``num_examples`` distinct prompts, drawn
    by ``seed``, the first half teaches n-grams and the second half is measured.
    """

    bundle: Path
    data: DataConfig
    drafts: tuple[str, ...] = ()
    num_examples: int = Field(default=48, ge=_LEAST_PROMPTS)
    max_tokens: int | None = Field(default=None, ge=4)
    temperature: float = Field(default=0.0, ge=0)
    seconds: float = Field(default=3 * SECONDS, gt=0)  # of up to four calls in turn
    seed: int = Field(default=0, ge=0)

    @field_validator("drafts")
    @classmethod
    def _canonical(cls, drafts: tuple[str, ...]) -> tuple[str, ...]:
        return canonical_drafts(drafts)

    def _problems(self) -> Iterator[str]:
        if any(map(is_auto, self.drafts)):
            yield "`drafts` has auto, which stands for the result of a fit; name drafts"


@dataclass(frozen=True)
class LosslessInputs:
    """The distinct prompts that teach n-grams, those that are measured, and the candidates."""

    teaching: tuple[tuple[int, ...], ...]
    measured: tuple[tuple[int, ...], ...]
    max_tokens: int
    candidates: tuple[DraftConfig, ...]
    plans: Mapping[str, LayerPlan]  # by the text of each part that runs layers of the model
    digest: str  # SHA-256 of the data's tokens


def prepare(config: LosslessConfig) -> LosslessInputs:
    """Read data and bundle, tokenise, and draw prompts; load no engine.

    Raises one SkipDecError with every problem found: of the bundle, one whose bits are not
    promised among them, of rows of the data, and of candidates that do not fit the bundle.
    """
    problems = Problems("fit --lossless")
    rows = problems.attempt(load_examples, config.data)
    bundle = problems.attempt(EngineBundle.open, config.bundle)
    data = candidates = None
    if bundle is not None:
        candidates = problems.attempt(_candidates, config, bundle)
        if rows is not None:
            data = problems.attempt(_tokenise, config, bundle, rows)
    if bundle is None or data is None or candidates is None or problems.errors:
        raise problems.error()
    prompts = list(dict.fromkeys(example.prompt_token_ids for example in data.examples))
    count = min(config.num_examples, len(prompts))
    if count < _LEAST_PROMPTS:
        raise UsageError(
            "data",
            f"has {count} distinct prompts; half teach n-grams, half are measured; allowed: "
            f"{_LEAST_PROMPTS} or more",
        )
    drawn = random.Random(config.seed).sample(prompts, count)
    longest = max(len(example.completion_token_ids) for example in data.examples)
    room = bundle.manifest.model.max_seq_len - max(map(len, drawn))
    max_tokens = min(config.max_tokens or ceil(_ROOM_OVER_COMPLETIONS * longest), room)
    if max_tokens < 4:
        raise UsageError(
            "data", f"leaves {max_tokens} tokens behind its longest prompt; allowed: 4 or more"
        )
    configs, plans = candidates
    return LosslessInputs(
        teaching=tuple(drawn[: count // 2]),
        measured=tuple(drawn[count // 2 :]),
        max_tokens=max_tokens,
        candidates=configs,
        plans=plans,
        digest=data.digest,
    )


def _tokenise(
    config: LosslessConfig, bundle: EngineBundle, rows: Sequence[Example]
) -> TokenisedData:
    """Tokenise the data. Raises UsageError if the bundle can't read or end texts."""
    tokenizer, model = Tokenizer.of(bundle), bundle.manifest.model
    if tokenizer is None or model.eos_token_id is None:
        raise UsageError(
            str(config.bundle),
            "has no tokenizer or no end-of-text token; export it from a checkpoint with both",
        )
    return tokenise(
        rows,
        tokenizer,
        end_token_ids=model.end_token_ids,
        max_length=model.max_seq_len,
        long_prompts=config.data.long_prompts,
        template=PromptTemplate.choose(config.data, bundle.manifest.prompt_template),
    )


def _candidates(
    config: LosslessConfig, bundle: EngineBundle
) -> tuple[tuple[DraftConfig, ...], Mapping[str, LayerPlan]]:
    """Return the candidates, and the layers of their parts. Raises UsageError for a bad one."""
    resolver = draft_resolver(bundle)
    resolver.resolve("own")  # a bundle that runs no drafts has one problem, not one per candidate
    found = [resolver.resolve(text) for text in config.drafts or _defaults(resolver)]
    plans = {
        str(part): resolver.plan(part)
        for draft in found
        if draft is not None
        for part in draft.parts
        if part.runs_layers and part.number is not None
    }
    return tuple(draft for draft in found if draft is not None), MappingProxyType(plans)


def _defaults(resolver: DraftResolver) -> list[str]:
    """Return the candidates for a bundle; of placements with the same layers the first."""
    placed: dict[LayerPlan, str] = {}
    most = resolver.manifest.model.num_layers // 2
    for text in (
        f"{name}:{n}" for n in _LAYERS if n <= most for name in ("ends", "first", "layers")
    ):
        try:
            draft = resolver.resolve(text)
        except UsageError:  # the bundle's placement has no such number of layers
            continue
        assert draft is not None
        placed.setdefault(resolver.plan(draft.parts[0]), text)
    layers = list(placed.values())
    if resolver.manifest.draft_layer is not None:
        layers.append("trained")
    if (head := resolver.manifest.draft_head) is not None:
        layers += [f"{text},head={head.tokens}" for text in layers]
    return ["own", "lookup", "own+lookup", *layers, *(f"own+{text}" for text in layers)]


def source_name(part: DraftPart, head: int | None) -> str:
    """Return the name of what ``part`` proposes, which depends on the size of its head."""
    return f"{part},head={head}" if part.runs_layers and head is not None else str(part)


def alone(part: str) -> DraftConfig:
    """Return drafts of ``part``, as many as possible in every pass, to record what it proposes."""
    draft = parse_draft(f"{part},adapt=no")
    assert draft is not None
    return draft
