"""`compare`: where two ways to run the same engines part."""

from __future__ import annotations

from ...engines.host.events import Events
from ...engines.host.installation import require_extra
from .config import CompareConfig
from .report import ComparisonReport


def compare(config: CompareConfig, events: Events | None = None) -> ComparisonReport:
    """Hold the engines of ``config.bundle`` against those of ``config.against``, one by one.

    Both sides read the same inputs, those that the reference makes on its way through embedding,
    layers and head, or recorded ones, so that an engine diverges by its own fault; ``stitched``
    feeds each side with its own. The first engine that diverges is run once more with the inner
    tensors that both graphs have in common as outputs.

    Raises before any run what ``open_sides`` raises, MissingExtraError without Polygraphy, and
    UsageError for layers or a recording that are not of the model; SkipDecError if an engine fails
    to run. Outputs that diverge are in the report, not an exception.
    """
    require_extra("compare", "skipdec compare")
    from .run import Comparison
    from .sides import open_sides

    subject, reference = open_sides(config)
    return Comparison(config, subject, reference, events or Events()).run()
