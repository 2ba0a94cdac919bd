"""Test the schedules of training steps and the loss term of distillation."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import torch
from fixture_types import Checkpoints
from ragged_batches import ROWS, batch_of
from torch.nn import functional as F
from transformers import TrainerState, TrainingArguments

from skipdec import ExitSchedule
from skipdec.calib.tuning.batches import ExampleDataset, SortedSteps, collate, mean_loss
from skipdec.calib.tuning.family import load_skip_model
from skipdec.calib.tuning.model import IGNORED_LABEL
from skipdec.calib.tuning.plan import step_schedules
from skipdec.calib.tuning.skip_models import SkipOPTForCausalLM
from skipdec.calib.tuning.trainer import SkipTrainer
from skipdec.engines.host.signals import Interruption
from skipdec.runtime.schedule.text import parse_schedule

TARGET = parse_schedule("linear:max=8,min=4,horizon=5", num_layers=12)
FULL = ExitSchedule.full(12)
HALF = parse_schedule("constant:max=4", num_layers=6)


def test_a_mixture_draws_all_its_schedules_equally_often() -> None:
    other = parse_schedule("constant:max=6", num_layers=12)
    schedules = step_schedules(TARGET, [other, FULL], seed=3)
    seen = [schedules(step) for step in range(300)]
    assert set(seen) == {TARGET, FULL, other}
    assert min(Counter(seen).values()) > 70
    again = step_schedules(TARGET, [other, FULL], seed=3)
    assert [again(step) for step in range(300)] == seen
    different = step_schedules(TARGET, [other, FULL], seed=4)
    assert [different(step) for step in range(300)] != seen


def test_every_step_runs_the_target_without_a_mixture() -> None:
    schedules = step_schedules(TARGET, (), seed=0)
    assert {schedules(step) for step in range(9)} == {TARGET}


def trainer(
    model: SkipOPTForCausalLM,
    directory: Path,
    target: ExitSchedule,
    teacher: SkipOPTForCausalLM | None = None,
    *,
    bf16: bool = False,
) -> SkipTrainer:
    made = SkipTrainer(
        interruption=Interruption(),
        model=model,
        args=TrainingArguments(
            str(directory), use_cpu=True, report_to="none", disable_tqdm=True, bf16=bf16
        ),
        train_dataset=ExampleDataset(ROWS),
        data_collator=collate,
        schedules=lambda step: HALF if step == 1 else target,
        distill=0.25,
        teacher=teacher,
    )
    made.state = TrainerState(global_step=0, max_steps=4)
    return made


def test_a_step_runs_its_schedule(checkpoint: Checkpoints, tmp_path: Path) -> None:
    model = load_skip_model(checkpoint("pre_norm"), "opt")
    target = parse_schedule("constant:max=2", num_layers=6)
    made = trainer(model, tmp_path, target)
    batch = batch_of(ROWS)
    skipped = mean_loss(model, ROWS, target)
    assert abs(mean_loss(model, ROWS, HALF) - skipped) > 1e-3
    assert made.compute_loss(model.train(), batch).item() == pytest.approx(skipped, abs=1e-5)
    made.state.global_step = 1
    half = mean_loss(model, ROWS, HALF)
    assert made.compute_loss(model.train(), batch).item() == pytest.approx(half, abs=1e-5)


def test_the_distillation_term_is_the_divergence_from_full_depth(
    checkpoint: Checkpoints, tmp_path: Path
) -> None:
    """Compare with the formula of TuneConfig on the labelled rows."""
    model, teacher = (load_skip_model(checkpoint("pre_norm"), "opt") for _ in range(2))
    target = parse_schedule("constant:max=2", num_layers=6)
    made = trainer(model, tmp_path, target, teacher)
    batch = batch_of(ROWS)
    actual = made.compute_loss(model.train(), batch)
    with torch.no_grad():
        student = model(**batch, schedule=target).logits  # [R, V]
        wanted = teacher(**batch, schedule=ExitSchedule.full(6)).logits
    shifted = batch["labels"][:, 1:]
    labels = shifted[shifted != IGNORED_LABEL]
    probabilities = wanted.softmax(-1)
    divergence = (probabilities * (probabilities.log() - student.log_softmax(-1))).sum(-1)
    expected = 0.75 * F.cross_entropy(student, labels) + 0.25 * divergence.mean()
    assert actual.item() == pytest.approx(expected.item(), rel=1e-5)
    assert all(parameter.grad is None for parameter in teacher.parameters())


def test_the_teacher_also_computes_in_mixed_precision(
    checkpoint: Checkpoints, tmp_path: Path
) -> None:
    model, teacher = (load_skip_model(checkpoint("pre_norm"), "opt") for _ in range(2))
    made = trainer(model, tmp_path, HALF, teacher, bf16=True)
    seen: list[torch.dtype] = []
    for layer in teacher.decoder_layers:
        layer.fc1.register_forward_hook(lambda *passed: seen.append(passed[-1].dtype))
    assert made.compute_loss(model.train(), batch_of(ROWS)).dtype == torch.float32
    assert seen == [torch.bfloat16] * 6


def test_steps_are_random_samples_in_batches_of_similar_length() -> None:
    lengths = [index % 17 for index in range(402)]
    epochs = iter((0, 0, 1))
    sampler = SortedSteps(lengths, 20, seed=0, epoch=lambda: next(epochs))
    order = list(sampler)
    assert sorted(order) == list(range(402))
    assert list(sampler) == order
    assert list(sampler) != order
    steps = [[lengths[index] for index in order[at : at + 20]] for at in range(0, 400, 20)]
    assert all(step == sorted(step) for step in steps)
    assert min(step[-1] - step[0] for step in steps) > 8  # no step has only short or long texts
