"""Texts packed end to end: the tokens that run each layer, hidden states, prediction targets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...runtime.schedule import ExitSchedule
from ..data.tokenised import TokenisedExample
from .engines import run_embedding, run_layer

_HEAD_ROWS = 256  # logits per chunk: 50 MiB with OPT's vocabulary


@dataclass(frozen=True)
class TokenBatch:
    """Tokens of whole texts that run a layer together.

    ``rows``, int64 [n], are indices into all tokens; ``mask``, bool [1, 1, n, n], lets each token
    attend to those of its own text up to itself.
    """

    rows: Tensor
    mask: Tensor


class PackedTexts:
    """Prompts and completions, N tokens in all, teacher-forced at the depth of ``schedule``.

    There is no padding: products only read tokens that run their layer. The last token of a
    completion is predicted but never fed. ``batch_tokens`` limits a batch, unless a single text is
    longer.

    >>> texts = PackedTexts([TokenisedExample((5, 6), (7, 8, 2), "")], schedule, 1024)
    >>> texts.input_ids, texts.predicting, texts.targets     # 5 6 7 8 are fed, 6 7 8 predict
    (tensor([[5, 6, 7, 8]]), tensor([1, 2, 3]), tensor([7, 8, 2]))
    """

    def __init__(
        self, examples: Sequence[TokenisedExample], schedule: ExitSchedule, batch_tokens: int
    ) -> None:
        ids: list[int] = []
        predicting: list[int] = []
        targets: list[int] = []
        lengths = []
        for example in examples:
            prompt, completion = example.prompt_token_ids, example.completion_token_ids
            first = len(ids) + len(prompt) - 1
            predicting += range(first, first + len(completion))
            targets += completion
            ids += (*prompt, *completion[:-1])
            lengths.append(len(prompt) + len(completion) - 1)
        self.input_ids = torch.tensor([ids])  # [1, N]
        self.predicting = torch.tensor(predicting)  # [R]
        self.targets = torch.tensor(targets)  # [R]
        sizes = torch.tensor(lengths)
        self._text = torch.repeat_interleave(torch.arange(len(lengths)), sizes)  # [N]
        starts = sizes.cumsum(0) - sizes
        self.position_ids = (torch.arange(len(ids)) - starts[self._text])[None]  # [1, N]
        self._active = torch.tensor(
            [
                schedule.active_lengths(
                    len(each.prompt_token_ids), len(each.completion_token_ids) - 1
                )
                for each in examples
            ]
        )  # [texts, L]
        self.spans = _spans(lengths, batch_tokens)

    def __len__(self) -> int:
        return self.input_ids.shape[1]

    def batches(self, layer: int) -> Iterator[TokenBatch]:
        """Yield the tokens that run ``layer``, in batches of whole texts."""
        for start, stop in self.spans:
            text = self._text[start:stop]
            runs = self.position_ids[0, start:stop] < self._active[text, layer]
            rows = start + runs.nonzero()[:, 0]  # [n]
            text = text[runs]
            mask = (text[:, None] == text) & (rows[:, None] >= rows)  # [n, n]
            yield TokenBatch(rows, mask[None, None])


def _spans(lengths: Sequence[int], batch_tokens: int) -> list[tuple[int, int]]:
    """Return first and last + 1 token of each batch: as many whole texts as fit, at least one."""
    spans: list[tuple[int, int]] = []
    start = stop = 0
    for length in lengths:
        if stop > start and stop + length - start > batch_tokens:
            spans.append((start, stop))
            start = stop
        stop += length
    return [*spans, (start, stop)]


class HiddenStates:
    """The hidden states [N, E] of ``texts``, float32, moved from layer to layer in place."""

    def __init__(self, texts: PackedTexts, values: Tensor) -> None:
        self.texts = texts
        self.values = values
        self.head_losses = torch.empty(0)  # [R], set when `run` reaches the head

    @classmethod
    def embed(cls, texts: PackedTexts, embedding: nn.Module) -> HiddenStates:
        """Compute the inputs of the first layer."""
        parts = [
            run_embedding(
                embedding, texts.input_ids[:, start:stop], texts.position_ids[:, start:stop]
            )
            for start, stop in texts.spans
        ]
        return cls(texts, torch.cat(parts))

    def copy(self) -> HiddenStates:
        """Return a copy of the states, of the same texts."""
        return HiddenStates(self.texts, self.values.clone())

    def read(self, index: int | None, engine: nn.Module) -> None:
        """Run layer ``index``, or the head if None, only so that observers see its products."""
        if index is None:
            self.losses(engine)
            return
        for batch in self.texts.batches(index):
            self._run(engine, batch)

    @property
    def mean_loss(self) -> float:
        """Mean of the losses of the head, in nats."""
        return float(self.head_losses.mean())

    def run(self, index: int | None, engine: nn.Module) -> None:
        """Advance through layer ``index``; None is the head, whose losses are kept."""
        if index is None:
            self.head_losses = self.losses(engine)
        else:
            self.advance(index, engine)

    def advance(self, index: int, layer: nn.Module) -> None:
        """Run layer ``index`` on the tokens that run it; the others stay unchanged."""
        for batch in self.texts.batches(index):
            self.values[batch.rows] = self._run(layer, batch)

    def _run(self, layer: nn.Module, batch: TokenBatch) -> Tensor:
        """Return the batch's hidden states after ``layer``, [n, E]."""
        position_ids = self.texts.position_ids[0, batch.rows]  # [n]
        return run_layer(layer, self.values[batch.rows], position_ids, batch.mask)

    def losses(self, head: nn.Module) -> Tensor:
        """Return the cross-entropy of each token to predict, [R], in nats."""
        parts = []
        predicting, targets = self.texts.predicting, self.texts.targets
        for start in range(0, len(targets), _HEAD_ROWS):
            rows = predicting[start : start + _HEAD_ROWS]  # [r]
            logits = head(self.values[rows][None], torch.arange(len(rows)))  # [r, V]
            wanted = targets[start : start + _HEAD_ROWS]
            parts.append(F.cross_entropy(logits, wanted, reduction="none"))
        return torch.cat(parts)
