"""The GPU baseline of skipdec: Hugging Face's model, static cache, torch.compile.

    python scripts/benchmarks/gpu/compiled_baseline.py opt-1.3b float16 cuda 1,8 128 64 5

prints ``{"baselines": [{"batch_size": 1, "step_milliseconds": [...], ...}, ...]}``: a prompt of 128
tokens, 64 generated, 5 repetitions. The forward pass of one token is compiled as a
whole with ``mode="reduce-overhead"``, which replays it as a CUDA graph; the loop only selects the
most probable token on the device and waits once, at the end. The baseline thus carries none of the
overhead of ``model.generate``.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import Any

import torch
from torch import Tensor
from torch._dynamo.utils import counters
from transformers import PreTrainedModel, StaticCache

from skipdec.exporter.architecture.architecture import expected_tensors, family_config
from skipdec.exporter.architecture.model_config import model_spec
from skipdec.exporter.checkpoint.dummy import DummyReader
from skipdec.exporter.verification.hugging_face import hugging_face_model
from skipdec.runtime.measuring.prompts import random_prompts

_WARMUP_STEPS = 4  # compilation and CUDA graph capture happen in the first ones


def dummy_model(name: str, dtype: torch.dtype, device: str) -> PreTrainedModel:
    """Return Hugging Face's model with the weights of ``export --load-format dummy``."""
    config = family_config(name)
    assert config is not None, name
    structure = model_spec(config, name)
    reader = DummyReader(expected_tensors(structure), seed=0)
    model: PreTrainedModel = hugging_face_model(structure, "float16", reader)
    return model.to(device=device, dtype=dtype)


@dataclass(frozen=True)
class Decoded:
    """Greedy continuations and their times."""

    tokens: Tensor  # int64 [B, steps + 1]
    prompt_seconds: float
    decode_seconds: float  # all steps after the prompt


class CompiledDecoder:
    """Greedy decoding over a static cache of ``capacity`` positions, one batch size."""

    def __init__(self, model: PreTrainedModel, capacity: int) -> None:
        self._model = model
        self._capacity = capacity
        self._cache = StaticCache(config=model.config, max_cache_len=capacity)
        self._compiled = torch.compile(self._step, mode="reduce-overhead", fullgraph=True)

    @torch.no_grad()
    def run(self, prompts: Tensor, steps: int) -> Decoded:
        """Read prompts [B, P], then decode ``steps`` more tokens after the prompt's own."""
        self._cache.reset()
        batch, length = prompts.shape
        positions = torch.arange(length + steps, device=prompts.device)
        mask = torch.ones(batch, self._capacity, dtype=torch.int64, device=prompts.device)
        start = _now(prompts.device)
        tokens = [self._step(prompts, positions[:length], mask)]  # each [B, 1]
        first = _now(prompts.device)
        for step in range(length, length + steps):
            chosen = self._compiled(tokens[-1], positions[step : step + 1], mask)
            tokens.append(chosen.clone())  # the graph reuses its memory
        end = _now(prompts.device)
        return Decoded(torch.cat(tokens, dim=1), first - start, end - first)

    def _step(self, tokens: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
        """Run tokens [B, S] at positions [S] → the most probable next token of each row [B, 1].

        ``mask`` [B, capacity] masks padding, of which there is none; the model is causal itself.
        """
        logits = self._model(
            input_ids=tokens,
            attention_mask=mask,
            past_key_values=self._cache,
            position_ids=positions.expand(tokens.shape[0], -1),
            use_cache=True,
            logits_to_keep=1,
        ).logits  # [B, 1, V]
        chosen: Tensor = logits.argmax(-1)
        return chosen


def measure(
    model: PreTrainedModel, batch: int, prompt: int, tokens: int, repetitions: int
) -> dict[str, Any]:
    """Return median seconds to the first token, and mean milliseconds per step by repetition."""
    device = model.device
    rows = random_prompts(model.config.vocab_size, batch_size=batch, prompt_length=prompt, seed=0)
    prompts = torch.tensor(rows, device=device)  # [B, P]
    decoder = CompiledDecoder(model, capacity=prompt + tokens)
    decoder.run(prompts, _WARMUP_STEPS)
    runs = [decoder.run(prompts, tokens - 1) for _ in range(repetitions)]
    return {
        "batch_size": batch,
        "num_layers": model.config.num_hidden_layers,
        "time_to_first_token": median(run.prompt_seconds for run in runs),
        "uses_cuda_graphs": device.type != "cpu" and not counters["inductor"]["cudagraph_skips"],
        "step_milliseconds": [1e3 * run.decode_seconds / (tokens - 1) for run in runs],
    }


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return perf_counter()


if __name__ == "__main__":
    model_name, number_type, where, batch_sizes, *numbers = sys.argv[1:]
    loaded = dummy_model(model_name, getattr(torch, number_type), where)
    found = []
    for size in batch_sizes.split(","):
        torch.compiler.reset()  # each size is compiled for itself
        found.append(measure(loaded, int(size), *map(int, numbers)))
    print(json.dumps({"baselines": found}))
