"""Batches of tokenised examples in the form of the training model; mean loss at a schedule."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset, Sampler

from ...engines.host.events import Events
from ...runtime.schedule import ExitSchedule
from ..data.tokenised import TokenisedExample
from .model import IGNORED_LABEL, SkipModel


class ExampleDataset(Dataset[dict[str, list[int]]]):
    """Examples with ``input_ids`` and ``labels`` of equal length, and ``prompt_lengths`` [1].

    Labels of the prompt are ignored.
    """

    def __init__(self, examples: Sequence[TokenisedExample]) -> None:
        self._examples = examples

    def __len__(self) -> int:
        return len(self._examples)

    @property
    def lengths(self) -> list[int]:
        """Number of tokens in each example, prompt and completion."""
        return [len(example) for example in self._examples]

    def __getitem__(self, index: int) -> dict[str, list[int]]:
        example = self._examples[index]
        prompt, completion = list(example.prompt_token_ids), list(example.completion_token_ids)
        return {
            "input_ids": prompt + completion,
            "labels": [IGNORED_LABEL] * len(prompt) + completion,
            "prompt_lengths": [len(prompt)],
        }


class SortedSteps(Sampler[int]):
    """Assigns examples to steps at random, and sorts those of each step by length.

    A step's micro-batches then need less padding than the step as a whole. The order depends only
    on seed and epoch, so that a resumed run continues it. ``epoch`` is called when a pass begins,
    because accelerate does not tell the samplers of several resuming processes.
    """

    def __init__(
        self, lengths: Sequence[int], step_size: int, seed: int, epoch: Callable[[], int]
    ) -> None:
        self._lengths = list(lengths)
        self._step_size = step_size
        self._seed = seed
        self._epoch = epoch

    def __len__(self) -> int:
        return len(self._lengths)

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(self._seed * 1_000_003 + self._epoch())
        shuffled = torch.randperm(len(self._lengths), generator=generator).tolist()
        starts = range(0, len(shuffled), self._step_size)
        whole = len(shuffled) // self._step_size  # a smaller last step remains last
        places = [*torch.randperm(whole, generator=generator).tolist(), *range(whole, len(starts))]
        for place in places:
            step = shuffled[starts[place] : starts[place] + self._step_size]
            yield from sorted(step, key=self._lengths.__getitem__)


def collate(items: Sequence[dict[str, list[int]]]) -> dict[str, Tensor]:
    """Pad on the right: input_ids, attention_mask and labels int64 [B, S], prompt_lengths [B].

    Padding has token 0, which no other token sees, mask 0 and label -100.
    """
    lengths = torch.tensor([len(item["input_ids"]) for item in items])  # [B]
    input_ids = _padded([item["input_ids"] for item in items], 0)  # [B, S]
    return {
        "input_ids": input_ids,
        "attention_mask": (torch.arange(input_ids.shape[1]) < lengths[:, None]).long(),  # [B, S]
        "labels": _padded([item["labels"] for item in items], IGNORED_LABEL),  # [B, S]
        "prompt_lengths": torch.tensor([item["prompt_lengths"][0] for item in items]),  # [B]
    }


def _padded(rows: Sequence[list[int]], value: int) -> Tensor:
    tensors = [torch.tensor(row) for row in rows]
    return pad_sequence(tensors, batch_first=True, padding_value=value)


def batches(
    examples: Sequence[TokenisedExample], size: int, device: torch.device
) -> Iterator[dict[str, Tensor]]:
    """Yield ``examples`` in their order in batches of `collate`, up to ``size`` each."""
    dataset = ExampleDataset(examples)
    for start in range(0, len(dataset), size):
        some = range(start, min(start + size, len(dataset)))
        batch = collate([dataset[index] for index in some])
        yield {name: tensor.to(device) for name, tensor in batch.items()}


@torch.no_grad()
def mean_loss(
    model: SkipModel,
    examples: Sequence[TokenisedExample],
    schedule: ExitSchedule,
    *,
    batch_size: int = 16,
    events: Events | None = None,
) -> float:
    """Return the completions' mean cross-entropy per token, teacher-forced, in nats.

    Every token has the same weight regardless of its batch. The model's mode and device stay
    unchanged. ``events`` advances by one step per batch.
    """
    ordered = sorted(examples, key=len)  # similar lengths need little padding
    was_training = model.training
    model.eval()
    total, count = 0.0, 0
    for batch in batches(ordered, batch_size, model.device):
        shifted = batch["labels"][:, 1:]
        targets = shifted[shifted != IGNORED_LABEL]  # [R]
        logits = model(**batch, schedule=schedule).logits  # [R, V]
        total += float(F.cross_entropy(logits, targets, reduction="sum"))
        count += targets.numel()
        if events is not None:
            events.advance()
    model.train(was_training)
    return total / count
