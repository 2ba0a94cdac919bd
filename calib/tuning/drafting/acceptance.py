"""Measure how many drafts hold on texts that a model writes at full depth.

A span begins after every token of a text that at least 6 more tokens follow. Its drafts hold up to
the first that differs from the text. A draft is only used if all drafts before it hold, so it
always follows tokens of the text, and one pass over the text gives all drafts of a position.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from ....engines.host.events import Events
from ....exporter.verification.hugging_face import written_greedily
from ...data.tokenised import TokenisedExample
from ..batches import batches
from ..draft import SPAN, DraftSpans
from ..model import IGNORED_LABEL, SkipModel
from ..plan import TuningPlan
from ..report import Acceptance
from .layer import DraftLayer, guess_places

MAX_TEXTS = 64
MAX_TOKENS = 128

HeldDrafts = Callable[[dict[str, Tensor]], Tensor]
"""Returns, for a batch of ``collate``, how many of 6 drafts hold from each position on, int64
[B, S-1]. A position's own token is known; its first draft is for the token after it."""


Texts = Sequence[Sequence[TokenisedExample]]
"""Batches of prompts with the texts that a model wrote for them."""


@torch.no_grad()
def measure_acceptance(model: SkipModel, texts: Texts, held: HeldDrafts) -> Acceptance | None:
    """Return how many drafts hold on ``texts`` of ``model``; None if all texts are too short.

    The model, and any draft layer behind ``held``, must be in evaluation mode.
    """
    counts = []
    for written in texts:
        (batch,) = batches(written, len(written), model.device)
        counts.append(held(batch)[_span_starts(batch)])  # [N]
    found = torch.cat(counts).double() if counts else torch.empty(0)
    if not len(found):
        return None
    return Acceptance(
        texts=sum(map(len, texts)),
        spans=len(found),
        held_of_6=round(float(found.mean()), 4),
        first=round(float((found > 0).double().mean()), 4),
    )


def held_by_layers(model: SkipModel, layers: tuple[int, ...]) -> HeldDrafts:
    """Return a function that counts how many drafts that run ``layers`` hold.

    Spans of 6 positions begin at six offsets, so that each position is the first of a span.
    """

    def held(batch: dict[str, Tensor]) -> Tensor:
        fed = batch["input_ids"][:, :-1]  # [B, S-1]
        prompts = batch["prompt_lengths"]  # [B]
        positions = torch.arange(fed.shape[1], device=fed.device) - prompts[:, None]  # [B, S-1]
        counts = torch.zeros_like(fed)
        for offset in range(SPAN):
            _, drafts = model.draft_states(fed, prompts, DraftSpans(layers, SPAN, offset))
            begins = positions.remainder(SPAN) == offset
            counts = torch.where(begins, _held(_hits(model, drafts, batch)), counts)
        return counts

    return held


def held_by_draft_layer(layer: DraftLayer) -> HeldDrafts:
    """Return a function that counts how many of ``layer``'s 6 guesses from each position hold."""

    def held(batch: dict[str, Tensor]) -> Tensor:
        labels, prompts = batch["labels"][:, 1:], batch["prompt_lengths"]  # [B, S-1], [B]
        places = guess_places(labels != IGNORED_LABEL, prompts, SPAN)  # [6, B, S-1]
        guesses = layer(layer.read(batch["input_ids"][:, :-1]), prompts, places)
        hits = torch.zeros_like(places)
        for right, logits, at in zip(hits, guesses, places, strict=True):
            right[at] = layer.token_ids[logits.argmax(-1)] == labels[at]
        size = labels.shape[1]
        chains = [F.pad(hits[ahead, :, ahead:], (0, min(ahead, size))) for ahead in range(SPAN)]
        return torch.stack(chains).long().cumprod(dim=0).sum(dim=0)

    return held


def _hits(model: SkipModel, drafts: Tensor, batch: dict[str, Tensor]) -> Tensor:
    """Return where the best token of drafts' states [B, S-1, E] is the next one of the text."""
    labels = batch["labels"][:, 1:]  # [B, S-1]
    labelled = labels != IGNORED_LABEL
    hits = torch.zeros_like(labelled)
    hits[labelled] = model.head(drafts[labelled]).argmax(-1) == labels[labelled]
    return hits


def _held(hits: Tensor) -> Tensor:
    """Return how many of the 6 entries from each position on precede the first False.

    [True, True, False, True] gives 2 1 0 1.
    """
    spans = F.pad(hits.long(), (0, SPAN - 1)).unfold(1, SPAN, 1)  # [B, S-1, 6]
    return spans.cumprod(dim=-1).sum(dim=-1)


def _span_starts(batch: dict[str, Tensor]) -> Tensor:
    """Return the positions of completion tokens that at least 6 more follow, bool [B, S-1]."""
    positions = torch.arange(batch["input_ids"].shape[1] - 1, device=batch["input_ids"].device)
    lengths = batch["attention_mask"].sum(dim=1, keepdim=True)  # [B, 1]
    return (positions >= batch["prompt_lengths"][:, None]) & (positions + SPAN < lengths)


def greedy_texts(model: SkipModel, plan: TuningPlan, events: Events) -> Texts:
    """Return the texts that ``model``, in evaluation mode, writes for held-out prompts, if any.

    It continues the first 64 distinct prompts by at most 128 tokens. ``events`` advances by a step
    for each batch.
    """
    if plan.validation is None:
        return []
    prompts = dict.fromkeys(each.prompt_token_ids for each in plan.validation.examples)
    ends, longest = plan.model.end_token_ids, plan.model.max_seq_len
    ordered = sorted(list(prompts)[:MAX_TEXTS], key=len)
    size, written = plan.config.batch_size, []
    events.stage("writing held-out texts", -(-len(ordered) // size))
    for first in range(0, len(ordered), size):
        batch = ordered[first : first + size]
        room = min(MAX_TOKENS, longest - len(batch[-1]))
        texts = written_greedily(model.plain(), batch, room, ends)
        written.append(
            [
                TokenisedExample(prompt, tuple(text), "")
                for prompt, text in zip(batch, texts, strict=True)
            ]
        )
        events.advance()
    return written
