"""Mean losses in nats per token, and perplexity, their readable form."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from ..engines.errors import counted


def perplexity(loss: float) -> float:
    """Return exp of a mean loss, or inf if a float can't hold it."""
    try:
        return math.exp(loss)
    except OverflowError:
        return math.inf


def loss_lines(
    texts: int, tokens: int, exact: float, quantised: Mapping[str, float]
) -> Iterator[str]:
    """Yield the losses of held-out completions, exact and by the names of quantised forms."""
    yield (
        f"loss of {counted(texts, 'held-out completion')} ({counted(tokens, 'token')}), "
        f"nats per token: float32 {exact:.4f} (perplexity {perplexity(exact):.3f})"
    )
    for name, loss in quantised.items():
        yield f"  {name} {loss:.4f} ({loss - exact:+.4f}, perplexity {perplexity(loss):.3f})"
