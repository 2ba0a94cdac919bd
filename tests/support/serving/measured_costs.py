"""Make the costs of passes that an engine has after measuring each often enough."""

from __future__ import annotations

from skipdec.runtime.drafting.costs import PassCosts


def costs_of(seconds: dict[int, float], rows: int = 1) -> PassCosts:
    """Return costs of passes over S tokens, each measured often enough."""
    costs = PassCosts()
    for tokens, one in seconds.items():
        for _ in range(15):
            costs.add_pass(rows, tokens, one)
    return costs
