"""Models with a depth per position: one teacher-forced pass computes what decoding computes.

Prompt tokens run every layer (with ``prompt="decay"``, fewer and fewer). Generated token i, when
fed back, runs ``schedule.plan(i)``. A token that skips a layer keeps its hidden state. Because
schedules are monotone, the tokens of a row that run a layer are a prefix of the row. The plain
causal mask is therefore exact, and each layer runs on that prefix only.

Example: 6 layers, warm-up 1, budgets 6 (prompt) 4 3 3 2, a prompt of 2 tokens and 4 tokens fed
back: layers 0 and 5 run on 6 positions, layer 4 on 5, layer 3 on 3, layers 1 and 2 on 2.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask
from transformers.modeling_outputs import CausalLMOutput

from ...engines.errors import UsageError
from ...runtime.schedule import ExitSchedule
from .draft import DraftSpans

IGNORED_LABEL = -100  # marks positions without a loss, as in transformers
ATTENTION = "skipdec"  # name of ``attention`` in transformers' configurations
_LONGEST_IN_FLOAT32 = 512  # in tokens; for longer texts, bfloat16 is faster on CPUs too


@dataclass
class DraftedOutput(CausalLMOutput):  # type: ignore[misc]  # transformers is untyped
    """Logits of full depth and, in ``draft_logits``, of drafts at the same positions."""

    draft_logits: Tensor | None = None


class SkipModel(PreTrainedModel, ABC):  # type: ignore[misc]  # transformers is untyped
    """Hugging Face's own causal language model with a forward pass that follows schedules.

    A family's class derives from this and from ``plain_class``, which defines its weights, and
    implements the abstract methods.
    """

    plain_class: ClassVar[type[PreTrainedModel]]
    accepts_loss_kwargs = True  # makes Trainer count the labels of a whole step

    def __init__(self, config: PreTrainedConfig) -> None:
        super().__init__(config)
        if (
            config._attn_implementation == "eager"
        ):  # eager attention has no causal mode without a mask
            raise UsageError("attn_implementation", "is 'eager'; allowed: 'sdpa' and flash kernels")

    @property
    @abstractmethod
    def decoder_layers(self) -> Sequence[nn.Module]:
        """Decoder layers, lowest first."""

    @abstractmethod
    def embedded(self, input_ids: Tensor, positions: Tensor) -> Tensor:
        """Embed token ids [B, S] at positions [S] → input of the first layer, [B, S, E]."""

    @property
    @abstractmethod
    def head_weights(self) -> Sequence[str]:
        """Names of the parameters that `head` reads; the last one has a row for each token."""

    @abstractmethod
    def run_layer(
        self,
        layer: nn.Module,
        hidden: Tensor,
        positions: Tensor,
        mask: Tensor | None = None,
        past: object = None,
    ) -> Tensor:
        """Run [B, S, E] at positions [S] through one layer, causally without a mask; [B, S, E].

        ``mask``, bool [B, 1, S, T], is True where a position (row) attends to another (column).
        Like a transformers cache, ``past`` holds the keys before these S, if T is larger, and takes
        theirs.
        """

    @abstractmethod
    def head(self, rows: Tensor) -> Tensor:
        """Compute float32 logits [R, V] of hidden states [R, E]."""

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        prompt_lengths: Tensor,
        labels: Tensor,
        schedule: ExitSchedule,
        spans: DraftSpans | None = None,
        **_: Any,  # noqa: ANN401  (added by wrappers such as peft's, all None)
    ) -> CausalLMOutput:
        """Return the logits of all labelled positions in one list, [R, V], row by row.

        With ``spans``, the pass runs at full depth and also returns drafts' logits, [R, V].

        ``input_ids``, int64 [B, S], hold prompt and completion, padded on the right, where
        ``attention_mask`` [B, S] is 0; ``prompt_lengths`` is int64 [B]. ``labels``, int64 [B, S],
        are the input_ids to learn, -100 elsewhere; position p predicts label p + 1, so the last
        column is never fed.
        """
        fed = input_ids[:, :-1]  # [B, S-1]
        labelled = labels[:, 1:] != IGNORED_LABEL  # [B, S-1]
        if spans is not None:
            full, drafts = self.draft_states(fed, prompt_lengths, spans)  # [B, S-1, E] each
            return DraftedOutput(
                logits=self.head(full[labelled]), draft_logits=self.head(drafts[labelled])
            )
        fed_lengths = attention_mask.sum(dim=1) - 1  # [B]
        hidden = self.hidden_states(fed, prompt_lengths, fed_lengths, schedule)  # [B, S-1, E]
        return CausalLMOutput(logits=self.head(hidden[labelled]))

    def hidden_states(
        self, input_ids: Tensor, prompt_lengths: Tensor, lengths: Tensor, schedule: ExitSchedule
    ) -> Tensor:
        """Return the last layer's output at each position, [B, S, E], before the head's norm.

        All ``input_ids`` [B, S] are fed; row b has ``lengths[b]`` tokens, of which the first
        ``prompt_lengths[b]`` are its prompt.
        """
        positions = torch.arange(input_ids.shape[1], device=input_ids.device)  # [S]
        hidden = self.embedded(input_ids, positions)  # [B, S, E]
        active = active_lengths(schedule, prompt_lengths, lengths)  # [L, B]
        longest, shortest = active.amax(dim=1).tolist(), (active - lengths).amin(dim=1).tolist()
        for index, layer in enumerate(self.decoder_layers):
            cut = longest[index]
            before, bypassed = hidden[:, :cut], hidden[:, cut:]  # [B, cut, E], [B, S - cut, E]
            # No mask: attention is causal, and right padding comes after all real tokens.
            after = self.run_layer(layer, before, positions[:cut])  # [B, cut, E]
            if shortest[index]:
                runs = positions[:cut] < active[index][:, None]  # [B, cut]
                after = torch.where(runs[:, :, None], after, before)
            hidden = (
                torch.cat([after, bypassed], dim=1) if bypassed.shape[1] else after
            )  # [B, S, E]
        return hidden

    def draft_states(
        self, input_ids: Tensor, prompt_lengths: Tensor, spans: DraftSpans
    ) -> tuple[Tensor, Tensor]:
        """Return the last layer's output at full depth and that of drafts, [B, S, E] each.

        A draft sees what it will see if all drafts before it in its span hold. To this end, a layer
        runs full depth's states and the drafts' in one sequence, with a mask.
        """
        positions = torch.arange(input_ids.shape[1], device=input_ids.device)  # [S]
        layers = self.decoder_layers
        full = self.embedded(input_ids, positions)
        for layer in layers[: spans.num_shared]:
            full = self.run_layer(layer, full, positions)
        drafts = full
        twice = torch.cat([positions, positions])  # [2S]
        mask = span_mask(positions, prompt_lengths, spans)  # [B, 1, 2S, 2S]
        for index in range(spans.num_shared, len(layers)):
            if index in spans.layers:
                both = torch.cat([full, drafts], dim=1)  # [B, 2S, E]
                full, drafts = self.run_layer(layers[index], both, twice, mask).chunk(2, dim=1)
            else:
                full = self.run_layer(layers[index], full, positions)
        return full, drafts

    def plain(self) -> PreTrainedModel:
        """Return transformers' own model, with its own forward pass, over the same weights."""
        shared = copy.copy(self)
        shared.__class__ = self.plain_class
        return shared


def span_mask(positions: Tensor, prompt_lengths: Tensor, spans: DraftSpans) -> Tensor:
    """Return which positions attend to which, bool [B, 1, 2S, 2S]: S of full depth, then S drafts.

    Full depth attends causally to itself. With spans of 2 positions, the draft at the second
    position attends to full depth before the span, to the draft at the first position, and to
    itself. Positions before the first span are spans of their own.
    """
    size = len(positions)
    start = prompt_lengths[:, None] + spans.offset  # [B, 1]
    inside = (positions - start).remainder(spans.size)  # [B, S]
    first = torch.where(positions < start, positions, positions - inside)[:, :, None]  # [B, S, 1]
    causal = positions <= positions[:, None]  # [S, S]
    sees_full = positions < first  # [B, S, S]
    sees_drafts = causal & ~sees_full  # [B, S, S]
    of_full = torch.cat([causal, torch.zeros_like(causal)], dim=1).expand(
        len(first), size, 2 * size
    )
    of_drafts = torch.cat([sees_full, sees_drafts], dim=2)
    return torch.cat([of_full, of_drafts], dim=1)[:, None]


def active_lengths(schedule: ExitSchedule, prompt_lengths: Tensor, lengths: Tensor) -> Tensor:
    """Return how many leading tokens of each row run each layer, int64 [L, B].

    ``lengths`` [B] counts the tokens fed, ``prompt_lengths`` [B] those of the prompt.
    """
    rows = [
        schedule.active_lengths(prompt, fed - prompt)
        for prompt, fed in zip(prompt_lengths.tolist(), lengths.tolist(), strict=True)
    ]
    return torch.tensor(rows, device=lengths.device).T  # [L, B]


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **options: Any,  # noqa: ANN401  (transformers' own)
) -> tuple[Tensor, None]:
    """Compute transformers' ``sdpa``, [B, H, S, D] each → [B, S, H, D] in the query's dtype.

    Under bfloat16 autocast, CPUs compute up to 512 tokens in float32, because the kernel's backward
    pass is slower in bfloat16 and a whole step takes up to 1.7 times as long
    (docs/guides/tuning.md).
    """
    is_short = query.shape[2] <= _LONGEST_IN_FLOAT32
    if query.device.type != "cpu" or query.dtype == torch.float32 or not is_short:
        output, _ = sdpa_attention_forward(module, query, key, value, attention_mask, **options)
        return output, None
    with torch.autocast("cpu", enabled=False):
        output, _ = sdpa_attention_forward(
            module, query.float(), key.float(), value.float(), attention_mask, **options
        )
    return output.to(query.dtype), None


AttentionInterface.register(ATTENTION, attention)
AttentionMaskInterface.register(ATTENTION, sdpa_mask)  # for transformers' own passes
