"""Options of ``skipdec tune`` that depend on others."""

from __future__ import annotations

from ..engines.checking import Problems
from ..engines.errors import UsageError


def check_combinations(*needs: tuple[str, object, str, object], steps: int | None) -> None:
    """Raise UsageError for options that would do nothing.

    Each of ``needs``: an option, its value, the one that it needs, and that one's value; None is
    what was not given. ``steps``: those that are given beside epochs.
    """
    problems = Problems("tune")
    problems.errors += [
        UsageError(option, f"needs {other}")
        for option, value, other, others_value in needs
        if value is not None and others_value is None
    ]
    if steps is not None:
        problems.errors.append(
            UsageError("--epochs", f"is given beside --max-steps {steps}; leave one of them out")
        )
    if problems.errors:
        raise problems.error()


def adapters(rank: int | None, alpha: float | None) -> dict[str, float] | None:
    """LoraConfig's values; ``alpha`` None: twice the rank."""
    if rank is None:
        return None
    return {"rank": rank, "alpha": 2.0 * rank if alpha is None else alpha}


def distillation(weight: float | None, temperature: float | None) -> dict[str, float] | None:
    """DistillationConfig's values; ``temperature`` None: 1."""
    if weight is None:
        return None
    return {"weight": weight, "temperature": 1.0 if temperature is None else temperature}
