"""Compare greedy texts of one bundle run in two ways, which may diverge at a tie."""

from __future__ import annotations

from dataclasses import dataclass

from skipdec.runtime.tokens.outputs import CompletionOutput


@dataclass(frozen=True)
class TokenComparison:
    """Counts of equal texts and of ties; ``diverged`` has a line for each other text."""

    compared: int
    equal: int
    ties: int
    diverged: tuple[str, ...]


def margin(expected: CompletionOutput, position: int) -> float:
    """Return by how much the most probable token leads; ``expected`` has two log-probabilities.

    Log-probabilities of -0.50 and -0.51: 0.01.
    """
    assert expected.logprobs is not None
    first, second, *_ = sorted(
        (one.logprob for one in expected.logprobs[position].values()), reverse=True
    )
    return first - second


def compare_tokens(
    found: list[CompletionOutput], expected: list[CompletionOutput], tolerance: float
) -> TokenComparison:
    """Compare texts in order; a text may diverge where ``expected`` has a margin of ``tolerance``.

    Depths must be equal up to that token.
    """
    equal = ties = 0
    diverged = []
    for index, (one, other) in enumerate(zip(found, expected, strict=True)):
        pairs = zip(one.token_ids, other.token_ids, strict=False)
        position = next((at for at, (a, b) in enumerate(pairs) if a != b), None)
        same_depths = one.layers_per_token[:position] == other.layers_per_token[:position]
        if position is None and same_depths and len(one.token_ids) == len(other.token_ids):
            equal += 1
        elif position is not None and same_depths and margin(other, position) <= tolerance:
            ties += 1
        else:
            diverged.append(
                f"text {index} parts at token {position}: {one.token_ids} of depths "
                f"{one.layers_per_token}, expected {other.token_ids} of {other.layers_per_token}"
            )
    return TokenComparison(len(expected), equal, ties, tuple(diverged))
