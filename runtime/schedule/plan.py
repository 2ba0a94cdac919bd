"""Plans: the layers of a token, and checks that later tokens run subsets of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

LayerRanges = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class LayerPlan:
    """The layers that one step runs, lowest first."""

    layers: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.layers)

    def __iter__(self) -> Iterator[int]:
        return iter(self.layers)

    @property
    def ranges(self) -> LayerRanges:
        """The first and last layer of each run of neighbours.

        >>> LayerPlan((0, 9, 10, 11)).ranges
        ((0, 0), (9, 11))
        """
        found: list[tuple[int, int]] = []
        for layer in self.layers:
            if found and layer == found[-1][1] + 1:
                found[-1] = (found[-1][0], layer)
            else:
                found.append((layer, layer))
        return tuple(found)


@dataclass(frozen=True)
class Segment:
    """A run of generated tokens with one plan: ``start`` ≤ i < ``stop``; None means no end."""

    start: int
    stop: int | None
    plan: LayerPlan


def generated_holes(segments: Sequence[Segment]) -> list[str]:
    """Return each place where a token runs a layer that the token before it did not run."""
    return [
        f"generated token {after.start} runs layer {layer}, which token {after.start - 1} did not"
        for before, after in pairwise(segments)
        for layer in _first_missing(before.plan, after.plan)
    ]


def prompt_holes(plans: Sequence[LayerPlan]) -> list[str]:
    """Return such places for prompt tokens, whose positions depend on the prompt's length."""
    return [
        f"a prompt token of budget {len(after)} runs layer {layer}, which one of budget "
        f"{len(before)} before it did not"
        for before, after in pairwise(plans)
        for layer in _first_missing(before, after)
    ]


def _first_missing(before: LayerPlan, after: LayerPlan) -> list[int]:
    return sorted(set(after) - set(before))[:1]


def realised_depth(layers_per_token: Sequence[int]) -> float | None:
    """Return the mean layers of all output tokens but the first, which belongs to the prompt.

    None without a second token.

    >>> realised_depth([6, 4, 3, 3, 2])
    3.0
    """
    generated = layers_per_token[1:]
    return sum(generated) / len(generated) if generated else None
