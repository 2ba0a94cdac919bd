"""Measure how much faster a training step is with fewer layers per position."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import PreTrainedModel, set_seed

from skipdec.calib.data.tokenised import TokenisedExample
from skipdec.calib.tuning.batches import POOLED_STEPS, ExampleDataset, LikeLengths, collate
from skipdec.calib.tuning.family import FreshModelConfig, tuning_family
from skipdec.calib.tuning.model import ATTENTION, IGNORED_LABEL, active_lengths
from skipdec.calib.tuning.start import fresh_document
from skipdec.runtime.schedule import ExitSchedule
from skipdec.runtime.schedule.text import format_schedule, parse_schedule

TRANSFORMERS = "transformers"  # its own forward pass at full depth


@dataclass(frozen=True)
class Workload:
    """Random texts: uniform ranges of prompt and completion lengths in tokens."""

    name: str
    prompts: tuple[int, int]
    completions: tuple[int, int]

    def examples(self, count: int, vocab_size: int, seed: int) -> list[TokenisedExample]:
        """Return ``count`` examples, the same for the same seed."""
        generator = torch.Generator().manual_seed(seed)

        def tokens(limits: tuple[int, int]) -> tuple[int, ...]:
            size = int(torch.randint(limits[0], limits[1] + 1, (1,), generator=generator))
            drawn = torch.randint(5, vocab_size, (size,), generator=generator)  # [size]
            return tuple(drawn.tolist())

        return [
            TokenisedExample(tokens(self.prompts), tokens(self.completions), "")
            for _ in range(count)
        ]


@dataclass(frozen=True)
class StepSpeed:
    """One row: seconds per step, and layer positions run as a share of full depth.

    ``speedup`` is full depth's time over this one's, median over the repetitions, each of which
    runs both in succession.
    """

    name: str
    schedule: str
    seconds: float
    speedup: float
    depth_share: float
    padding: float  # layer positions computed per position needed


def measure_steps(
    workload: Workload,
    sizes: FreshModelConfig,
    schedules: Sequence[str],
    *,
    vocab_size: int,
    batch_size: int,
    repetitions: int,
    bf16: bool = False,
    seed: int = 0,
) -> list[StepSpeed]:
    """Time whole steps (forward, backward, AdamW) of every schedule in turn, ``repetitions`` times.

    The first row is transformers' own pass, the second full depth, to which ``speedup`` refers.
    Each repetition has its own batch of texts of similar length, the same for all rows. ``bf16``
    runs forward passes under autocast, as ``tune --bf16`` does.
    """
    examples = workload.examples(64 * batch_size, vocab_size, seed)
    dataset = ExampleDataset(examples)
    order = list(LikeLengths(dataset.lengths, batch_size, seed, pooled_steps=POOLED_STEPS))
    batches = [
        collate([dataset[index] for index in order[start : start + batch_size]])
        for start in range(0, min(len(order), (repetitions + 1) * batch_size), batch_size)
    ]
    horizon = int(median(len(example.completion_token_ids) for example in examples))
    parsed = {
        text: parse_schedule(text, num_layers=sizes.layers, horizon=horizon)
        for text in dict.fromkeys(("full", *schedules))
    }
    steps = _steps(sizes, vocab_size, parsed, bf16=bf16, seed=seed)
    times: dict[str, list[float]] = {name: [] for name in steps}
    for repetition in range(repetitions + 1):
        batch = batches[repetition % len(batches)]
        for name, step in steps.items():
            begin = perf_counter()
            step(batch)
            if repetition:  # the first repetition warms up
                times[name].append(perf_counter() - begin)
    full = times["full"]
    parsed = {TRANSFORMERS: parsed["full"], **parsed}
    return [
        StepSpeed(
            name=name,
            schedule=format_schedule(schedule),
            seconds=median(times[name]),
            speedup=median(whole / part for whole, part in zip(full, times[name], strict=True)),
            depth_share=_positions(batches, schedule)[0] / _positions(batches, parsed["full"])[0],
            padding=_positions(batches, schedule)[1] / _positions(batches, schedule)[0],
        )
        for name, schedule in parsed.items()
    ]


def _steps(
    sizes: FreshModelConfig,
    vocab_size: int,
    schedules: Mapping[str, ExitSchedule],
    *,
    bf16: bool,
    seed: int,
) -> dict[str, Callable[[dict[str, Tensor]], None]]:
    """Create a model and a training step for each row."""
    document = fresh_document(sizes, vocab_size)
    skip_class = tuning_family(document["model_type"]).model_class()

    def make(kind: type[PreTrainedModel]) -> tuple[PreTrainedModel, torch.optim.Optimizer]:
        set_seed(seed)
        attention = ATTENTION if kind is skip_class else "sdpa"
        model = kind(kind.config_class(**document, attn_implementation=attention)).train()
        return model, torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def plain(batch: dict[str, Tensor]) -> None:
        model, optimizer = plain_model
        inputs = {name: batch[name] for name in ("input_ids", "attention_mask", "labels")}
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            loss = model(**inputs, use_cache=False).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    def skipping(text: str) -> Callable[[dict[str, Tensor]], None]:
        model, optimizer = make(skip_class)

        def step(batch: dict[str, Tensor]) -> None:
            shifted = batch["labels"][:, 1:]
            with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
                logits = model(**batch, schedule=schedules[text]).logits  # [R, V]
            loss = F.cross_entropy(logits, shifted[shifted != IGNORED_LABEL])
            torch.autograd.backward(loss)
            optimizer.step()
            optimizer.zero_grad()

        return step

    plain_model = make(skip_class.plain_class)
    return {TRANSFORMERS: plain, **{text: skipping(text) for text in schedules}}


def _positions(batches: Sequence[dict[str, Tensor]], schedule: ExitSchedule) -> tuple[float, float]:
    """Return layers times positions of all batches, as needed by tokens and as computed."""
    needed = computed = 0.0
    for batch in batches:
        lengths = batch["attention_mask"].sum(dim=1) - 1  # [B]
        active = active_lengths(schedule, batch["prompt_lengths"], lengths)  # [L, B]
        needed += float(active.sum())
        computed += float(active.amax(dim=1).sum() * active.shape[1])
    return needed, computed
