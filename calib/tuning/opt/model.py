"""Hugging Face's OPT, taken apart as skipping asks."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn
from transformers import OPTForCausalLM

from ..model import SkipModel


class SkipOPTForCausalLM(SkipModel, OPTForCausalLM):  # type: ignore[misc]  # transformers is untyped
    """``layerdrop`` of the configuration is ignored: the schedule decides which layers run."""

    plain_class = OPTForCausalLM

    @property
    def decoder_layers(self) -> Sequence[nn.Module]:
        """See SkipModel."""
        layers: Sequence[nn.Module] = self.model.decoder.layers
        return layers

    def embedded(self, input_ids: Tensor, positions: Tensor) -> Tensor:
        """See SkipModel."""
        decoder = self.model.decoder
        tokens = decoder.embed_tokens(input_ids)  # [B, S, P]
        if decoder.project_in is not None:
            tokens = decoder.project_in(tokens)  # [B, S, E]
        hidden: Tensor = tokens + decoder.embed_positions(None, position_ids=positions[None])
        return hidden

    def run_layer(self, layer: nn.Module, hidden: Tensor, positions: Tensor) -> Tensor:
        """See SkipModel."""
        after: Tensor = layer(hidden, attention_mask=None)
        return after

    def head(self, rows: Tensor) -> Tensor:
        """See SkipModel."""
        decoder = self.model.decoder
        if decoder.final_layer_norm is not None:
            rows = decoder.final_layer_norm(rows)
        if decoder.project_out is not None:
            rows = decoder.project_out(rows)  # [R, P]
        logits: Tensor = self.lm_head(rows)  # [R, V]
        return logits.float()
