"""Hugging Face's OPT with a forward pass that skips layers."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn
from transformers import OPTForCausalLM
from typing_extensions import override

from ...model import SkipModel


class SkipOPTForCausalLM(SkipModel, OPTForCausalLM):  # type: ignore[misc]  # transformers is untyped
    """OPT that follows a schedule; the configuration's ``layerdrop`` is ignored."""

    plain_class = OPTForCausalLM

    @property
    @override
    def decoder_layers(self) -> Sequence[nn.Module]:
        layers: Sequence[nn.Module] = self.model.decoder.layers
        return layers

    @override
    def embedded(self, input_ids: Tensor, positions: Tensor) -> Tensor:
        decoder = self.model.decoder
        tokens = decoder.embed_tokens(input_ids)  # [B, S, P]
        if decoder.project_in is not None:
            tokens = decoder.project_in(tokens)  # [B, S, E]
        hidden: Tensor = tokens + decoder.embed_positions(None, position_ids=positions[None])
        return hidden

    @override
    def run_layer(
        self, layer: nn.Module, hidden: Tensor, positions: Tensor, mask: Tensor | None = None
    ) -> Tensor:
        after: Tensor = layer(hidden, attention_mask=mask)
        return after

    @override
    def head(self, rows: Tensor) -> Tensor:
        decoder = self.model.decoder
        if decoder.final_layer_norm is not None:
            rows = decoder.final_layer_norm(rows)
        if decoder.project_out is not None:
            rows = decoder.project_out(rows)  # [R, P]
        logits: Tensor = self.lm_head(rows)  # [R, V]
        return logits.float()
