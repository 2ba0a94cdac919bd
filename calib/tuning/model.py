"""A depth for each position: one teacher-forced pass that computes what decoding computes.

Prompt tokens run every layer (with ``prompt="decay"`` fewer and fewer); generated token i, when it
is fed back, runs ``schedule.plan(i)``; a token that does not run a layer keeps its hidden state.
As sets of layers only shrink along a row, the tokens that run a layer are a prefix of the row
(design: monotone schedules), so the plain causal mask is exact and each layer runs on that prefix
alone.

Worked example, 6 layers, warm-up 1, budgets 6 (prompt) 4 3 3 2, a prompt of 2 tokens and 4 tokens
fed back: layers 0 and 5 run on 6 positions, layer 4 on 5, layer 3 on 3, layers 1 and 2 on 2.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedConfig, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_outputs import CausalLMOutput

from ...engines.errors import UsageError
from ...runtime.schedule import ExitSchedule

IGNORED_LABEL = -100  # of positions without a loss, as everywhere in transformers
ATTENTION = "skipdec"  # its name in transformers' configurations
_LONGEST_IN_FLOAT32 = 512  # tokens; beyond, bfloat16 is the faster one on CPUs too


class SkipModel(PreTrainedModel, ABC):  # type: ignore[misc]  # transformers is untyped
    """Hugging Face's own causal language model; only the forward pass knows of schedules.

    A family's class derives from this and from ``plain_class``, whose weights it has, and says how
    to take the latter apart.
    """

    plain_class: ClassVar[type[PreTrainedModel]]
    accepts_loss_kwargs = True  # transformers' Trainer then counts the labels of a whole step

    def __init__(self, config: PreTrainedConfig) -> None:
        super().__init__(config)
        if config._attn_implementation == "eager":  # it takes no mask for no causality
            raise UsageError("attn_implementation", "is 'eager'; allowed: 'sdpa' and flash kernels")

    @property
    @abstractmethod
    def decoder_layers(self) -> Sequence[nn.Module]:
        """The decoder layers, lowest first."""

    @abstractmethod
    def embedded(self, input_ids: Tensor, positions: Tensor) -> Tensor:
        """Token ids [B, S] at positions [S] → what the first layer reads, [B, S, E]."""

    @abstractmethod
    def run_layer(self, layer: nn.Module, hidden: Tensor, positions: Tensor) -> Tensor:
        """[B, S, E] at positions [S] through one layer, causal and without a mask, [B, S, E]."""

    @abstractmethod
    def head(self, rows: Tensor) -> Tensor:
        """Hidden states [R, E] → float32 logits [R, V]."""

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        prompt_lengths: Tensor,
        labels: Tensor,
        schedule: ExitSchedule,
        **_: Any,  # noqa: ANN401  (what wrappers as peft's add, and None all of it)
    ) -> CausalLMOutput:
        """Logits of the positions that have a label, in one list: [R, V], row by row.

        ``input_ids`` int64 [B, S] hold prompt and completion, padded on the right;
        ``attention_mask`` [B, S] is 0 there; ``prompt_lengths`` int64 [B]. ``labels`` int64 [B, S]
        are the input_ids that are to be learnt, -100 elsewhere; position p predicts label p + 1,
        so the last column is never fed.
        """
        fed = input_ids[:, :-1]  # [B, S-1]
        fed_lengths = attention_mask.sum(dim=1) - 1  # [B]
        hidden = self.hidden_states(fed, prompt_lengths, fed_lengths, schedule)  # [B, S-1, E]
        rows = hidden[labels[:, 1:] != IGNORED_LABEL]  # [R, E]
        return CausalLMOutput(logits=self.head(rows))

    def hidden_states(
        self, input_ids: Tensor, prompt_lengths: Tensor, lengths: Tensor, schedule: ExitSchedule
    ) -> Tensor:
        """What the last layer leaves at each position, [B, S, E], before the head's norm.

        ``input_ids`` [B, S] are all fed; row b has ``lengths[b]`` tokens, the first
        ``prompt_lengths[b]`` of them its prompt.
        """
        positions = torch.arange(input_ids.shape[1], device=input_ids.device)  # [S]
        hidden = self.embedded(input_ids, positions)  # [B, S, E]
        active = active_lengths(schedule, prompt_lengths, lengths)  # [L, B]
        longest, shortest = active.amax(dim=1).tolist(), (active - lengths).amin(dim=1).tolist()
        for index, layer in enumerate(self.decoder_layers):
            cut = longest[index]
            before, bypassed = hidden[:, :cut], hidden[:, cut:]  # [B, cut, E], [B, S - cut, E]
            # No mask: attention is causal, and padding on the right is after all that counts.
            after = self.run_layer(layer, before, positions[:cut])  # [B, cut, E]
            if shortest[index]:
                runs = positions[:cut] < active[index][:, None]  # [B, cut]
                after = torch.where(runs[:, :, None], after, before)
            hidden = (
                torch.cat([after, bypassed], dim=1) if bypassed.shape[1] else after
            )  # [B, S, E]
        return hidden


def active_lengths(schedule: ExitSchedule, prompt_lengths: Tensor, lengths: Tensor) -> Tensor:
    """How many of each row's first tokens run each layer, int64 [L, B].

    ``lengths`` [B] counts the tokens fed, ``prompt_lengths`` [B] those of them that are prompt.
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
    **options: Any,  # noqa: ANN401  (transformers')
) -> tuple[Tensor, None]:
    """transformers' ``sdpa``, [B, H, S, D] each → [B, S, H, D] in the query's dtype.

    Under bfloat16 autocast a CPU computes up to 512 tokens in float32: the kernel's backward pass
    is slower in bfloat16, and a whole step takes up to 1.7 times as long (docs/guides/tuning.md).
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
