"""Run a whole LLaMA-family model as a chain of torch modules, without traced graphs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from built_engines import module
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from skipdec.engines.manifest import EngineKind, ModelSpec
from skipdec.exporter.architecture.weights import TensorReader


class StateReader:
    """Reads the tensors of a Hugging Face model by their names in a checkpoint."""

    def __init__(self, model: PreTrainedModel) -> None:
        state = model.state_dict()
        self._tensors = {name.removeprefix("model."): tensor for name, tensor in state.items()}

    def read(self, name: str) -> NDArray[np.float32]:
        return self._tensors[name].numpy()


@torch.no_grad()
def chain_logits(
    model: ModelSpec, reader: TensorReader, tokens: Sequence[int], parts: Sequence[int]
) -> Tensor:
    """Return logits [P, V] of one row of P tokens, fed in consecutive ``parts`` over caches."""
    layers = range(model.num_layers)
    embed, head = (module(kind, model, reader) for kind in (EngineKind.EMBED, EngineKind.HEAD))
    modules = [module(EngineKind.LAYER, model, reader, index) for index in layers]
    capacity = len(tokens)
    shape = (1, model.num_kv_heads, capacity, model.head_dim)
    caches = [(torch.zeros(shape), torch.zeros(shape)) for _ in layers]
    rows, start = [], 0
    assert sum(parts) == capacity
    for size in parts:
        places = torch.arange(start, start + size)
        mask = (places[:, None] >= torch.arange(capacity))[None, None]  # [1, 1, S, T]
        hidden = embed(torch.tensor([tokens[start : start + size]]))
        for index, layer in enumerate(modules):
            hidden, *caches[index] = layer(
                hidden, *caches[index], torch.tensor([start]), mask, places[None]
            )
        rows.append(head(hidden, torch.arange(size)))
        start += size
    return torch.cat(rows)
