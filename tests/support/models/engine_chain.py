"""Run a whole LLaMA-family model as a chain of torch modules, without traced graphs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from skipdec.engines.manifest import EngineKind, ModelSpec
from skipdec.exporter.architecture.architecture import engine_parameters
from skipdec.exporter.architecture.decoder_modules import engine_module
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
    model: ModelSpec,
    reader: TensorReader,
    tokens: Sequence[int],
    parts: Sequence[int],
    slip: int = 0,
) -> Tensor:
    """Return logits [P, V] of one row of P tokens, fed in consecutive ``parts`` over caches.

    ``slip`` simulates a mistake; it is added to the positions of all parts but the first.
    """
    layers = range(model.num_layers)
    embed, head = (
        _loaded(kind, model, reader, None) for kind in (EngineKind.EMBED, EngineKind.HEAD)
    )
    modules = [_loaded(EngineKind.LAYER, model, reader, index) for index in layers]
    capacity = len(tokens)
    shape = (1, model.num_kv_heads, capacity, model.head_dim)
    caches = [(torch.zeros(shape), torch.zeros(shape)) for _ in layers]
    rows, start = [], 0
    assert sum(parts) == capacity
    for size in parts:
        places = torch.arange(start, start + size)
        mask = (places[:, None] >= torch.arange(capacity))[None, None]  # [1, 1, S, T]
        positions = places[None] + (slip if start else 0)  # [1, S]
        hidden = embed(torch.tensor([tokens[start : start + size]]))
        for index, layer in enumerate(modules):
            hidden, *caches[index] = layer(
                hidden, *caches[index], torch.tensor([start]), mask, positions
            )
        rows.append(head(hidden, torch.arange(size)))
        start += size
    return torch.cat(rows)


def _loaded(
    kind: EngineKind, model: ModelSpec, reader: TensorReader, layer_index: int | None
) -> torch.nn.Module:
    module = engine_module(kind, model)
    for parameter in engine_parameters(kind, model, layer_index):
        weight = np.ascontiguousarray(parameter.load(reader))
        module.get_parameter(parameter.name).data = torch.from_numpy(weight)
    return module
