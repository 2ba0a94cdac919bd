"""A draft layer's guesses equal those of literal chains, computed entry by entry."""

from __future__ import annotations

import pytest
import torch
from fixture_types import Checkpoints
from ragged_batches import ROWS, batch_of
from tiny_models import STRUCTURES
from torch import Tensor
from torch.nn import functional as F

from skipdec.calib.data.tokenised import TokenisedExample
from skipdec.calib.tuning.drafting.acceptance import held_by_draft_layer
from skipdec.calib.tuning.drafting.layer import DraftLayer, guess_places
from skipdec.calib.tuning.drafting.trainer import fit_entry, kept_tokens, weighted_divergence
from skipdec.calib.tuning.family import load_skip_model
from skipdec.calib.tuning.model import SkipModel
from skipdec.engines.host.events import Events

GUESSES = 4
KEPT = tuple(range(3, 90, 2))


def random_layer(model: SkipModel) -> DraftLayer:
    """Return a draft layer of random maps, in which each part matters."""
    torch.manual_seed(3)
    layer = DraftLayer(model, KEPT)
    with torch.no_grad():
        for weight in (layer.states, layer.entry):
            weight += 0.3 * torch.randn_like(weight)
        for norm in (layer.states_norm, layer.entry_norm):
            norm += 0.3 * torch.randn_like(norm)
    return layer.eval()


def model_of(structure: str, checkpoint: Checkpoints) -> SkipModel:
    family = "opt" if structure in STRUCTURES else structure
    return load_skip_model(checkpoint(structure), family).eval()


@torch.no_grad()
def literal_guess(layer: DraftLayer, row: TokenisedExample, place: int, ahead: int) -> Tensor:
    """Return the logits [N] of guess ``ahead`` + 1 of the chain that begins after ``place``.

    Each entry runs the layer over all entries before it, with its own position.
    """
    model, tokens = layer.base, [*row.prompt_token_ids, *row.completion_token_ids]
    fed = torch.tensor([tokens])
    reading, first = layer.read(fed), len(row.prompt_token_ids)
    states = [
        layer.joined([each[:, place] for each in reading.states]) for place in range(len(tokens))
    ]
    entries = [
        layer.entries(reading.embedded[:, here], states[here - 1])
        for here in range(first, place + 1)
    ]
    output = torch.zeros(0)
    for step in range(ahead + 1):
        here = place + step
        if step:
            entries.append(layer.entries(reading.embedded[:, here], output))
        positions = torch.arange(first, here + 1)
        stacked = torch.stack(entries, dim=1)
        output = model.run_layer(layer.layer, stacked, positions)[:, -1]
    return layer.logits(output)[0]


@pytest.mark.parametrize("structure", [*STRUCTURES, "llama"])
def test_guesses_equal_literal_chains(structure: str, checkpoint: Checkpoints) -> None:
    layer, batch = random_layer(model_of(structure, checkpoint)), batch_of(ROWS)
    labelled = batch["labels"][:, 1:] >= 0
    places = guess_places(labelled, batch["prompt_lengths"], GUESSES)
    with torch.no_grad():
        reading = layer.read(batch["input_ids"][:, :-1])
        guesses = layer(reading, batch["prompt_lengths"], places)
    compared = 0
    for ahead, (logits, at) in enumerate(zip(guesses, places, strict=True)):
        for found, (row, here) in zip(logits, at.nonzero().tolist(), strict=True):
            expected = literal_guess(layer, ROWS[row], here - ahead, ahead)
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
            compared += 1
    assert compared == 4 + 3 + 2 + 1 + 2 + 1


def test_drafts_are_accepted_up_to_the_first_wrong_token(checkpoint: Checkpoints) -> None:
    layer = random_layer(model_of("pre_norm", checkpoint))
    text = (8, 9)
    for chain in (3, 2, 6):  # right guesses, and a wrong token after each chain
        place = 3 + len(text) - 1
        for ahead in range(chain):
            row = TokenisedExample((5, 6, 7), text, "")
            text += (KEPT[int(literal_guess(layer, row, place, ahead).argmax())],)
        text += (4,)
    row = TokenisedExample((5, 6, 7), text, "")
    tokens = [*row.prompt_token_ids, *text]
    counts = held_by_draft_layer(layer)(batch_of([row, *ROWS]))[0]
    for place in range(3, len(tokens) - 1):
        held = 0
        while held < 6 and place + held + 1 < len(tokens):
            logits = literal_guess(layer, row, place, held)
            if KEPT[int(logits.argmax())] != tokens[place + held + 1]:
                break
            held += 1
        assert counts[place] == held
    assert (counts[4], counts[8], counts[11]) == (3, 2, 6)


@pytest.mark.parametrize("structure", [*STRUCTURES, "llama"])
def test_a_fitted_input_is_nearer_to_the_last_layer_than_a_plain_map(
    structure: str, checkpoint: Checkpoints
) -> None:
    model = model_of(structure, checkpoint)
    torch.manual_seed(0)
    rows = [
        TokenisedExample((5, 6, 7), tuple(text), "")
        for text in torch.randint(3, 90, (40, 12)).tolist()
    ]
    layer = DraftLayer(model, KEPT)
    batch = batch_of(rows)
    reading = layer.read(batch["input_ids"][:, :-1])

    @torch.no_grad()
    def error() -> float:
        before = F.pad(layer.joined(reading.states)[:, :-1], (0, 0, 1, 0))
        entries = layer.entries(reading.embedded, before)[:, 3:]
        wanted = reading.last[:, 3:]
        return float((entries - wanted).square().mean() / wanted.square().mean())

    plain = error()
    fit_entry(layer, rows, batch_size=16, events=Events())
    assert error() < min(1.0, 0.7 * plain)


def test_the_most_frequent_tokens_of_completions_are_kept() -> None:
    rows = [TokenisedExample((7,), (5, 5, 9, 5), ""), TokenisedExample((7,), (9, 3), "")]
    assert kept_tokens(rows, 10) == [0, 1, 3, 5, 9]
    assert kept_tokens(rows, 4) == [0, 3]


def test_the_divergence_is_weighted_by_the_mass_of_kept_tokens() -> None:
    wanted = torch.tensor([[0.2, 0.2, 0.1], [0.0, 0.0, 0.0]])
    logits = torch.tensor([[1.0, 0.0, 2.0], [5.0, 1.0, 0.0]])
    of_kept = wanted[:1] / 0.5
    expected = 0.5 * F.kl_div(logits[:1].log_softmax(-1), of_kept, reduction="sum")
    assert weighted_divergence(logits, wanted).item() == pytest.approx(expected.item(), rel=1e-5)
