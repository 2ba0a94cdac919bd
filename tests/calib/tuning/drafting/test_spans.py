"""Test drafts in spans: their layers, their attention, and the loss that tunes them."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest
import torch
from fixture_types import Checkpoints
from literal_drafts import chain_of, draft_logits
from ragged_batches import ROWS, batch_of
from tiny_models import EVERY_STRUCTURE
from torch.nn import functional as F
from transformers import PreTrainedModel, TrainerState, TrainingArguments

from skipdec import ExitSchedule
from skipdec.calib.tuning.batches import ExampleDataset, collate
from skipdec.calib.tuning.draft import DraftSpans, layers_run, step_spans
from skipdec.calib.tuning.family import load_skip_model
from skipdec.calib.tuning.model import IGNORED_LABEL, span_mask
from skipdec.calib.tuning.trainer import Drafting, SkipTrainer
from skipdec.engines.errors import UsageError
from skipdec.engines.host.signals import Interruption

ENDS = (0, 4, 5)


@pytest.mark.parametrize(
    ("text", "layers"),
    [
        ("ends:3", (0, 4, 5)),
        ("ends:1", (0,)),
        ("first:3", (0, 1, 2)),
        ("first:5", (0, 1, 2, 3, 4)),
    ],
)
def test_the_text_of_a_draft_names_layers(text: str, layers: tuple[int, ...]) -> None:
    assert layers_run(text, 6) == layers


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("end:3", r"'end:3' is unknown; did you mean 'ends'\?"),
        ("ends", "'ends' needs a number of layers, e.g. ends:3"),
        ("ends:3,tokens=5", "is 'ends:3,tokens=5'"),
        ("own", "is 'own'; allowed: ends:N or first:N alone"),
        ("own+ends:3", "is 'own.ends:3'"),
        ("trained", "is 'trained'"),
        ("off", "is 'off'"),
        ("first:0", "'first:0' needs a number of layers"),
        ("ends:6", "ends:6 runs 6 layers of 6; allowed: 1 to 5"),
    ],
)
def test_other_texts_are_refused_with_the_allowed_ones(text: str, problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        layers_run(text, 6)


def test_spans_of_a_step_depend_only_on_seed_and_step() -> None:
    seen = [step_spans(ENDS, step, seed=0) for step in range(300)]
    assert seen == [step_spans(ENDS, step, seed=0) for step in range(300)]
    assert seen != [step_spans(ENDS, step, seed=1) for step in range(300)]
    drawn = {(each.size, each.offset) for each in seen}
    assert drawn == {(size, -position) for size in range(1, 7) for position in range(size)}


def test_the_mask_of_two_spans_equals_the_worked_example() -> None:
    """The prompt has 2 tokens, spans begin at 2 and 4; rows are queries, columns are keys."""
    mask = span_mask(torch.arange(5), torch.tensor([2]), DraftSpans(ENDS, 2))
    assert mask.shape == (1, 1, 10, 10)
    drafts = ["".join(map(str, row)) for row in mask[0, 0, 5:].int().tolist()]
    assert drafts == [
        "0000010000",  # before the first span, each position is its own span
        "1000001000",
        "1100000100",
        "1100000110",
        "1111000001",
    ]
    assert mask[0, 0, :5, :5].equal(torch.ones(5, 5).tril().bool())
    assert not mask[0, 0, :5, 5:].any()


@torch.no_grad()
@pytest.mark.parametrize("structure", EVERY_STRUCTURE)
@pytest.mark.parametrize("layers", [ENDS, (0, 1, 2), (4, 5)])
def test_drafts_of_a_ragged_batch_equal_literal_drafts(
    layers: tuple[int, ...],
    structure: str,
    checkpoint: Checkpoints,
    reference_model: Callable[[str], PreTrainedModel],
) -> None:
    plain, full = reference_model(structure), ExitSchedule.full(6)
    model = load_skip_model(checkpoint(structure), plain.config.model_type).eval()
    batch = batch_of(ROWS)
    for size, offset in ((1, 0), (3, -1), (6, 0)):
        output = model(**batch, schedule=full, spans=DraftSpans(layers, size, offset))
        expected, wanted = [], []
        for row in ROWS:
            tokens = [*row.prompt_token_ids, *row.completion_token_ids]
            first = len(row.prompt_token_ids)
            for position in range(first - 1, len(tokens) - 1):
                start = (
                    position - (position - first - offset) % size
                    if position >= first + offset
                    else position
                )
                drafted = draft_logits(
                    plain, tokens[: position + 1], start, chain_of(plain, layers)
                )
                expected.append(drafted[-1])
                wanted.append(plain(torch.tensor([tokens])).logits[0, position])
        torch.testing.assert_close(output.draft_logits, torch.stack(expected), rtol=0, atol=2e-5)
        torch.testing.assert_close(output.logits, torch.stack(wanted), rtol=0, atol=2e-5)


def test_the_loss_combines_labels_and_the_divergence_of_drafts(
    checkpoint: Checkpoints, tmp_path: Path
) -> None:
    """Compare with the formula of DraftObjective; full depth is a constant in the divergence."""
    model = load_skip_model(checkpoint("pre_norm"), "opt").train()
    full = ExitSchedule.full(6)
    made = SkipTrainer(
        interruption=Interruption(),
        model=model,
        args=TrainingArguments(str(tmp_path), use_cpu=True, report_to="none", disable_tqdm=True),
        train_dataset=ExampleDataset(ROWS),
        data_collator=collate,
        schedules=lambda step: full,
        drafting=Drafting(0.25, ENDS),
    )
    made.state = TrainerState(global_step=3, max_steps=4)
    batch = batch_of(ROWS)
    actual = made.compute_loss(model, batch)
    spans = step_spans(ENDS, 3, seed=made.args.seed)
    with torch.no_grad():
        output = model(**batch, schedule=full, spans=spans)
    shifted = batch["labels"][:, 1:]
    labels = shifted[shifted != IGNORED_LABEL]
    probabilities = output.logits.softmax(-1)
    ratio = probabilities.log() - output.draft_logits.log_softmax(-1)
    divergence = (probabilities * ratio).sum(-1).mean()
    expected = 0.75 * F.cross_entropy(output.logits, labels) + 0.25 * divergence
    assert actual.item() == pytest.approx(expected.item(), rel=1e-5)


def test_drafts_do_not_change_full_depth_passes(checkpoint: Checkpoints) -> None:
    model = load_skip_model(checkpoint("no_bias"), "opt").eval()
    batch, full = batch_of(ROWS), ExitSchedule.full(6)
    with torch.no_grad():
        plain = model(**batch, schedule=full).logits
        for size, offset in product((1, 4), (0, -1)):
            drafted = model(**batch, schedule=full, spans=DraftSpans(ENDS, size, offset)).logits
            torch.testing.assert_close(drafted, plain, rtol=0, atol=2e-5)
