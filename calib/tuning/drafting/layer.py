"""A draft layer that reads full depth's states, then its own outputs in their place.

The entry of a token consists of its embedding and of the states of the token before it, taken
after some of the model's layers. From an entry, the draft layer computes one output, which scores
the next token. Guess 1 after a token reads full depth's states; each later guess reads the output
of the guess before it instead. Keys and values belong to entries: those of the text up to the first
guess, and those of guesses after it. Only tokens after the prompt have entries.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F
from typing_extensions import override

from ....exporter.architecture.decoder import JOIN_EPSILON
from ..draft import layers_read
from ..model import SkipModel


class Reading(NamedTuple):
    """Full depth's tensors at each position [B, S, E]: embeddings, and the states that are read.

    ``last``: the input of the model's last layer.
    """

    embedded: Tensor
    states: tuple[Tensor, ...]
    last: Tensor

    @property
    def top(self) -> Tensor:
        """The last layer's output, before the head's norm."""
        return self.states[-1]


class DraftLayer(nn.Module):
    """A draft layer for the frozen model ``base``, which scores the tokens ``token_ids`` alone.

    It has a layer of the model's own structure, and a norm and head of its own. ``base`` is not
    part of this module: it is not trained, saved or moved with it.
    """

    accepts_loss_kwargs = True  # makes Trainer count the labels of a whole step
    base: SkipModel
    token_ids: Tensor

    def __init__(self, base: SkipModel, token_ids: Sequence[int]) -> None:
        super().__init__()
        base.requires_grad_(False).eval()
        object.__setattr__(self, "base", base)  # nn.Module would register it
        device, width = base.device, base.config.hidden_size
        self.reads = layers_read(len(base.decoder_layers))
        ids = torch.tensor(token_ids, device=device)
        self.register_buffer("token_ids", ids, persistent=False)
        one, count = torch.eye(width, device=device), len(self.reads)
        self.states_norm = nn.Parameter(torch.ones(count, width, device=device))
        lower = torch.zeros(width, (count - 1) * width, device=device)
        self.states = nn.Parameter(torch.cat([lower, one], dim=1))  # [E, kE]
        self.entry_norm = nn.Parameter(torch.ones(2, width, device=device))
        self.entry = nn.Parameter(torch.cat([one / 2, one], dim=1))  # [E, 2E]
        self.layer = copy.deepcopy(base.decoder_layers[-1]).requires_grad_(True)
        weights = {name: base.get_parameter(name).detach() for name in base.head_weights}
        self.head = nn.ParameterList(
            weight[ids] if name == base.head_weights[-1] else weight.clone()
            for name, weight in weights.items()
        )

    @torch.no_grad()
    def read(self, fed: Tensor) -> Reading:
        """Run the model at full depth on token ids [B, S]."""
        base, positions = self.base, torch.arange(fed.shape[1], device=fed.device)
        hidden = embedded = base.embedded(fed, positions)
        last, found = hidden, {}
        for count, layer in enumerate(base.decoder_layers, 1):
            last, hidden = hidden, base.run_layer(layer, hidden, positions)
            if count in self.reads:
                found[count] = hidden
        return Reading(embedded, tuple(found[count] for count in self.reads), last)

    @override
    def forward(self, reading: Reading, prompt_lengths: Tensor, places: Tensor) -> list[Tensor]:
        """Return the logits of guesses 1, 2, …, [R, N] each, after the tokens at ``places``.

        ``places``, bool [guesses, B, S], says after which tokens guess k is made. The tokens are
        the text's, because guesses that hold equal them.
        """
        outputs = self.outputs(reading, prompt_lengths, len(places))
        return [self.logits(each[at]) for each, at in zip(outputs, places, strict=True)]

    def outputs(self, reading: Reading, prompt_lengths: Tensor, guesses: int) -> Iterator[Tensor]:
        """Yield the outputs of each guess, [B, S, E]; those at the first token are meaningless."""
        positions = torch.arange(reading.embedded.shape[1], device=reading.embedded.device)
        past = GuessCache()
        state = behind(self.joined(reading.states))
        for guess in range(1, guesses + 1):
            entries = self.entries(reading.embedded, state)
            mask = chain_mask(positions, prompt_lengths, guess)
            output = self.base.run_layer(self.layer, entries, positions, mask, past)
            yield output
            state = behind(output)

    def joined(self, states: Sequence[Tensor]) -> Tensor:
        """Join the states that were read into one, [B, S, E]."""
        return _mapped(states, self.states_norm, self.states)

    def entries(self, embedded: Tensor, state: Tensor) -> Tensor:
        """Join embeddings of tokens and states, [B, S, E] each, into the draft layer's input."""
        return _mapped((embedded, state), self.entry_norm, self.entry)

    def tensors(self) -> dict[str, Tensor]:
        """Return the weights by their names in the exporter's ``draft_layer``."""
        norms = (("states", self.states_norm), ("entry", self.entry_norm))
        heads = zip(self.base.head_weights, self.head, strict=True)
        return {
            "states.product.weight": self.states,
            "entry.product.weight": self.entry,
            **{
                f"{name}.norms.{index}.weight": norm
                for name, rows in norms
                for index, norm in enumerate(rows)
            },
            **{f"layer.{name}": tensor for name, tensor in self.layer.state_dict().items()},
            **{f"head.{name.removeprefix('model.')}": tensor for name, tensor in heads},
        }

    @torch.no_grad()
    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Copy ``weights``, which have the names and shapes of `tensors`."""
        for name, own in self.tensors().items():
            own.copy_(weights[name])

    def logits(self, rows: Tensor) -> Tensor:
        """Return float32 logits [R, N] of outputs [R, E]."""
        weights = dict(zip(self.base.head_weights, self.head, strict=True))
        own = {f"base.{name}": weight for name, weight in weights.items()}
        logits: Tensor = functional_call(_Head(self.base), own, (rows,))
        return logits


class GuessCache:
    """The keys and values of guesses so far, with the interface of transformers' caches."""

    def __init__(self) -> None:
        self._held: tuple[Tensor, ...] = ()

    def update(self, key: Tensor, value: Tensor, *_: object) -> tuple[Tensor, ...]:
        """Add the keys and values of a guess, [B, N, S, D] each; return all."""
        new = (key, value)
        held = zip(self._held, new, strict=True) if self._held else ()
        self._held = tuple(torch.cat(pair, dim=2) for pair in held) or new
        return self._held


class _Head(nn.Module):
    """The head of a model as a module."""

    def __init__(self, base: SkipModel) -> None:
        super().__init__()
        self.base = base

    @override
    def forward(self, rows: Tensor) -> Tensor:
        return self.base.head(rows)


def chain_mask(positions: Tensor, prompt_lengths: Tensor, guess: int) -> Tensor:
    """Return which entries a guess attends to, bool [B, 1, S, guess · S].

    Guess k from the entry at position p belongs to a chain that began at position p − k + 1. It
    sees the text's own entries up to there, and then one entry of each guess. Every entry sees
    itself.
    """
    made, seen = positions[:, None], positions  # [S, 1], [S]
    first = made - guess + 1
    own = (seen <= first) & (seen >= prompt_lengths[:, None, None])  # [B, S, S]
    if guess == 1:
        own = own | (seen == made)
    later = [(seen == first + ahead).expand_as(own) for ahead in range(1, guess)]
    return torch.cat([own, *later], dim=2)[:, None]


def guess_places(labelled: Tensor, prompt_lengths: Tensor, guesses: int) -> Tensor:
    """Return the entries from which guesses 1, 2, … are made, bool [guesses, B, S].

    ``labelled``, bool [B, S]: where the next token is to be learnt. With prompts of 3 tokens, guess
    1 is made at positions 3, 4, 5, …, and guess 2 at 4, 5, ….
    """
    positions = torch.arange(labelled.shape[1], device=labelled.device)
    since = positions - prompt_lengths[:, None]  # [B, S]
    return torch.stack([labelled & (since >= guess) for guess in range(guesses)])


def behind(states: Tensor) -> Tensor:
    """Return the states of each token's predecessor, [B, S, E], zeros for the first token."""
    return F.pad(states[:, :-1], (0, 0, 1, 0))


def _mapped(parts: Sequence[Tensor], norms: Tensor, weight: Tensor) -> Tensor:
    """Return the product [..., E] of concatenated ``parts`` [..., E], each with its norm."""
    normed = [
        F.rms_norm(part.float(), norm.shape, norm.float(), JOIN_EPSILON)
        for part, norm in zip(parts, norms, strict=True)
    ]
    return F.linear(torch.cat(normed, dim=-1), weight)
