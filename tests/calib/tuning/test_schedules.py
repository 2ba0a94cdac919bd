"""Schedules of training steps, and the loss term of distillation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F
from transformers import TrainerState, TrainingArguments

from skipdec import ExitSchedule
from skipdec.calib.data.tokenised import TokenisedExample
from skipdec.calib.tuning.batches import ExampleDataset, LikeLengths, collate, mean_loss
from skipdec.calib.tuning.config import DistillationConfig
from skipdec.calib.tuning.families.opt.model import SkipOPTForCausalLM
from skipdec.calib.tuning.family import load_skip_model
from skipdec.calib.tuning.model import IGNORED_LABEL
from skipdec.calib.tuning.plan import step_schedules
from skipdec.calib.tuning.trainer import SkipTrainer
from skipdec.runtime.schedule.placements import PLACEMENTS
from skipdec.runtime.schedule.text import parse_schedule

TARGET = parse_schedule("linear:max=8,min=4,horizon=5", num_layers=12)
FULL = ExitSchedule.full(12)
ROWS = [TokenisedExample((5, 6, 7), (8, 9, 10, 11, 2), ""), TokenisedExample((5,), (8, 2), "")]


def budgets(schedule: ExitSchedule) -> list[int]:
    return [schedule.budget(index) for index in range(7)]


def test_a_curriculum_shrinks_from_full_depth_to_the_target() -> None:
    schedules = step_schedules(TARGET, curriculum=0.5, mixture=(), seed=0)
    seen = [schedules(step, 160) for step in range(160)]
    assert budgets(seen[0]) == [12] * 7
    assert budgets(seen[40]) == [10, 10, 9, 9, 8, 8, 8]  # half way: 12 − (12 − b) / 2
    assert seen[79] != TARGET
    assert seen[80:] == [TARGET] * 80
    assert list(Counter(seen).values()) == [10] * 8 + [80]
    for before, after in pairwise(seen):
        assert all(a <= b for a, b in zip(budgets(after), budgets(before), strict=True))


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_a_curriculum_reaches_every_placement(placement: str) -> None:
    tail = ",tail=2" if placement == "d3" else ""
    text = f"constant:max=5,placement={placement}{tail}"
    target = parse_schedule(text, num_layers=12)
    schedules = step_schedules(target, curriculum=1.0, mixture=(), seed=0)
    assert [budgets(schedules(step, 7))[0] for step in range(7)] == [12, 11, 10, 9, 8, 7, 6]
    assert {schedules(step, 7).placement for step in range(7)} == {placement}


def test_a_mixture_draws_target_full_depth_and_the_others_alike() -> None:
    other = parse_schedule("constant:max=6", num_layers=12)
    schedules = step_schedules(TARGET, curriculum=None, mixture=[other, FULL], seed=3)
    seen = [schedules(step, 300) for step in range(300)]
    assert set(seen) == {TARGET, FULL, other}
    assert min(Counter(seen).values()) > 70
    again = step_schedules(TARGET, curriculum=None, mixture=[other, FULL], seed=3)
    assert [again(step, 300) for step in range(300)] == seen
    different = step_schedules(TARGET, curriculum=None, mixture=[other, FULL], seed=4)
    assert [different(step, 300) for step in range(300)] != seen


def test_without_either_every_step_runs_the_target() -> None:
    schedules = step_schedules(TARGET, curriculum=None, mixture=(), seed=0)
    assert {schedules(step, 9) for step in range(9)} == {TARGET}


def trainer(
    model: SkipOPTForCausalLM,
    directory: Path,
    target: ExitSchedule,
    distillation: DistillationConfig | None = None,
    teacher: SkipOPTForCausalLM | None = None,
) -> SkipTrainer:
    made = SkipTrainer(
        model=model,
        args=TrainingArguments(str(directory), use_cpu=True, report_to="none", disable_tqdm=True),
        train_dataset=ExampleDataset(ROWS),
        data_collator=collate,
        schedules=step_schedules(target, curriculum=1.0, mixture=(), seed=0),
        target=target,
        distillation=distillation,
        teacher=teacher,
    )
    made.state = TrainerState(global_step=0, max_steps=4)
    return made


def test_a_step_runs_its_schedule_and_an_evaluation_the_target(
    checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    model = load_skip_model(checkpoint("pre_norm"), "opt")
    target = parse_schedule("constant:max=2", num_layers=6)
    made = trainer(model, tmp_path, target)
    batch = collate([ExampleDataset(ROWS)[index] for index in range(len(ROWS))])
    full = mean_loss(model, ROWS, ExitSchedule.full(6))
    skipped = mean_loss(model, ROWS, target)
    assert abs(full - skipped) > 1e-2
    assert made.compute_loss(model.train(), batch).item() == pytest.approx(full, abs=1e-5)
    made.state.global_step = 2
    half = parse_schedule("constant:max=4", num_layers=6)
    assert made.compute_loss(model, batch).item() == pytest.approx(
        mean_loss(model, ROWS, half), abs=1e-5
    )
    assert made.compute_loss(model.eval(), batch).item() == pytest.approx(skipped, abs=1e-5)


def test_distillation_is_the_divergence_from_full_depth(
    checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    """Compare with the formula of DistillationConfig, on the rows with labels only."""
    model, teacher = (load_skip_model(checkpoint("pre_norm"), "opt") for _ in range(2))
    target = parse_schedule("constant:max=2", num_layers=6)
    config = DistillationConfig(weight=0.25, temperature=2.0)
    made = trainer(model, tmp_path, target, config, teacher)
    made.state.global_step = 4  # at the end of the curriculum: the target
    batch = collate([ExampleDataset(ROWS)[index] for index in range(len(ROWS))])
    actual = made.compute_loss(model.train(), batch)
    with torch.no_grad():
        student = model(**batch, schedule=target).logits  # [R, V]
        wanted = teacher(**batch, schedule=ExitSchedule.full(6)).logits
    shifted = batch["labels"][:, 1:]
    labels = shifted[shifted != IGNORED_LABEL]
    probabilities = (wanted / 2).softmax(-1)
    divergence = (probabilities * (probabilities.log() - (student / 2).log_softmax(-1))).sum(-1)
    expected = 0.75 * F.cross_entropy(student, labels) + 0.25 * 4 * divergence.mean()
    assert actual.item() == pytest.approx(expected.item(), rel=1e-5)
    assert all(parameter.grad is None for parameter in teacher.parameters())


def test_ungrouped_steps_are_random_samples_with_parts_of_similar_length() -> None:
    lengths = [index % 17 for index in range(400)]
    order = list(LikeLengths(lengths, 20, seed=0, pooled_steps=1))
    assert sorted(order) == list(range(400))
    steps = [[lengths[index] for index in order[at : at + 20]] for at in range(0, 400, 20)]
    assert all(step == sorted(step) for step in steps)
    assert min(step[-1] - step[0] for step in steps) > 8  # no step is of short or long texts alone


def test_batches_of_like_length_are_a_shuffle_that_depends_on_the_epoch() -> None:
    lengths = [index % 17 for index in range(402)]
    sampler = LikeLengths(lengths, 4, seed=0, pooled_steps=50)
    first = list(sampler)
    assert sorted(first) == list(range(402))
    assert list(sampler) == first
    spread = [
        max(lengths[index] for index in first[start : start + 4])
        - min(lengths[index] for index in first[start : start + 4])
        for start in range(0, 400, 4)
    ]
    assert sum(spread) / len(spread) < 1
    of_batch = [lengths[index] for index in first[:400:4]]
    assert sorted(of_batch[:50]) != of_batch[:50] != sorted(of_batch[:50], reverse=True)
    sampler.set_epoch(1)
    assert list(sampler) != first
