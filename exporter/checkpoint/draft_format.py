"""Format 2 of a draft layer: one that reads full depth's states, as ``skipdec tune`` writes it.

``draft_layer.safetensors`` has, for states of width E that are read at three depths, and N tokens
that are scored:

    states.norms.I.weight [E]    states.product.weight [E, 3 E]   make one state of the I = 0, 1, 2
    entry.norms.I.weight [E]     entry.product.weight [E, 2 E]    join I = 0 (embedding), 1 (state)
    layer.*                      a layer's tensors, called as in the checkpoint behind its number
    head.*                       the head's tensors, called as there, with N rows of the vocabulary

``draft_layer.json`` has `DraftStatesFacts`.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import ConfigDict, Field

from ...engines.checking import FrozenModel
from .draft_layer import DraftedModel


class DraftStatesFacts(FrozenModel):
    """The content of draft_layer.json; ``training`` and ``acceptance`` are for people."""

    model_config = ConfigDict(extra="ignore")

    format: Literal[2] = 2
    reads: tuple[int, ...] = Field(
        min_length=3,
        max_length=3,
        description="how many of the model's layers have run where states are read, ascending",
    )
    token_ids: tuple[int, ...] = Field(description="the tokens that its head scores, ascending")
    model: DraftedModel
    training: dict[str, Any] = Field(default_factory=dict)
    acceptance: dict[str, Any] = Field(default_factory=dict)
