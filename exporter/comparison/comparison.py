"""`compare`: find where two ways to run the same engines diverge."""

from __future__ import annotations

from ...engines.host.events import Events
from ...engines.host.installation import require_extra
from .config import CompareConfig
from .report import ComparisonReport


def compare(config: CompareConfig, events: Events | None = None) -> ComparisonReport:
    """Compare the engines of ``config.bundle`` with those of ``config.against``, one by one.

    Both sides read the same random inputs, so errors of earlier engines don't carry over. The first
    engine that diverges runs once more with the inner tensors common to both graphs as outputs.

    Raises MissingExtraError without Polygraphy, UsageError for layers that the model doesn't have,
    and the errors of ``open_sides`` before any run; later, SkipDecError if an engine fails to run.
    Diverging outputs are reported and raise nothing.
    """
    CompareConfig.require(config)
    require_extra("compare", "skipdec compare")
    from .engines import compare_engines
    from .sides import open_sides

    subject, reference = open_sides(config)
    return compare_engines(config, subject, reference, events or Events())
