"""Batches of tokenised examples in the form the training model takes; mean loss at a schedule."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset, Sampler

from ...engines.host.events import Events
from ...runtime.schedule import ExitSchedule
from ..data.tokenised import TokenisedExample
from .model import IGNORED_LABEL, SkipModel

POOLED_STEPS = 50


class ExampleDataset(Dataset[dict[str, list[int]]]):
    """Examples with ``input_ids`` and ``labels`` of equal length, and ``prompt_lengths`` [1].

    Labels of the prompt are ignored unless ``learn_prompt``.
    """

    def __init__(self, examples: Sequence[TokenisedExample], *, learn_prompt: bool = False) -> None:
        self._examples = examples
        self._learn_prompt = learn_prompt

    def __len__(self) -> int:
        return len(self._examples)

    @property
    def lengths(self) -> list[int]:
        """Number of tokens in each example, prompt and completion."""
        return [len(example) for example in self._examples]

    def __getitem__(self, index: int) -> dict[str, list[int]]:
        example = self._examples[index]
        prompt, completion = list(example.prompt_token_ids), list(example.completion_token_ids)
        ignored = [IGNORED_LABEL] * len(prompt)
        return {
            "input_ids": prompt + completion,
            "labels": (prompt if self._learn_prompt else ignored) + completion,
            "prompt_lengths": [len(prompt)],
        }


class LikeLengths(Sampler[int]):
    """Samples all examples in a random order that keeps texts of similar length together.

    Pools of ``pooled_steps`` × ``step_size`` examples are sorted by length and cut into steps,
    which are shuffled, so that long texts do not always come first. With 1, each step is a random
    sample whose micro-batches need less padding than the step as a whole. With more, whole steps
    have similar lengths: padding is minimal, but a step's mean loss then gives tokens of short
    texts, above all their ends, more weight than those of long ones. The order depends only on seed
    and epoch, so that a resumed run continues it.
    """

    def __init__(
        self, lengths: Sequence[int], step_size: int, seed: int, *, pooled_steps: int
    ) -> None:
        self._lengths = list(lengths)
        self._step_size = step_size
        self._pooled_steps = pooled_steps
        self._seed = seed
        self._epoch = 0

    def __len__(self) -> int:
        return len(self._lengths)

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of the next pass; accelerate calls this."""
        self._epoch = epoch

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(self._seed * 1_000_003 + self._epoch)
        shuffled = torch.randperm(len(self._lengths), generator=generator).tolist()
        sorted_pools = [
            sorted(pool, key=self._lengths.__getitem__)
            for pool in _chunks(shuffled, self._pooled_steps * self._step_size)
        ]
        steps = [step for pool in sorted_pools for step in _chunks(pool, self._step_size)]
        whole = len(self._lengths) // self._step_size  # a smaller last step stays last
        places = [*torch.randperm(whole, generator=generator).tolist(), *range(whole, len(steps))]
        return (index for place in places for index in steps[place])


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


def _chunks(indices: list[int], size: int) -> list[list[int]]:
    return [indices[start : start + size] for start in range(0, len(indices), size)]


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

    Every token has the same weight regardless of its batch. Leaves the model's mode and device
    unchanged. ``events`` advances by a step for each batch.
    """
    dataset = ExampleDataset(sorted(examples, key=len))  # similar lengths need little padding
    was_training = model.training
    model.eval()
    total, count = 0.0, 0
    for start in range(0, len(dataset), batch_size):
        stop = min(start + batch_size, len(dataset))
        batch = collate([dataset[index] for index in range(start, stop)])
        batch = {name: tensor.to(model.device) for name, tensor in batch.items()}
        shifted = batch["labels"][:, 1:]
        targets = shifted[shifted != IGNORED_LABEL]  # [R]
        logits = model(**batch, schedule=schedule).logits  # [R, V]
        total += float(F.cross_entropy(logits, targets, reduction="sum"))
        count += targets.numel()
        if events is not None:
            events.advance()
    model.train(was_training)
    return total / count
