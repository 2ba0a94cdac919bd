"""Plans the parts that an export adds for drafts: their text, a layer, a head and n-grams."""

from __future__ import annotations

from pathlib import Path

from ...engines.checking import Problems
from ...engines.documents import read_file
from ...engines.errors import UsageError
from ...engines.kernels.formats import uncut_head
from ...engines.manifest import ModelSpec, PrecisionSpec
from ...engines.targets import default_device
from ...runtime.drafting.config import is_auto, parse_draft
from ...runtime.drafting.known_ngrams import MAX_NGRAMS_BYTES, parse_ngrams
from ...runtime.drafting.resolver import draft_problems
from ..checkpoint.checkpoint import Checkpoint
from ..checkpoint.draft_layer import read_draft_layer
from ..config import DRAFT_HEAD_MULTIPLE, ExportConfig
from .plan import DraftParts

_UNMIGRATED = (
    "the draft layer is quantised without the factors of --ranges, which were measured in the "
    "model's own layers; that affects how often drafts hold, never a text"
)


def plan_drafts(
    config: ExportConfig, checkpoint: Checkpoint, problems: Problems, *, is_migrated: bool
) -> DraftParts:
    """Check the draft options of ``config``; collect errors in ``problems``."""
    layer = None
    if config.draft_layer is not None:
        layer = problems.attempt(read_draft_layer, config.draft_layer, checkpoint)
    model, precision = checkpoint.model, config.precision()
    warnings = [_UNMIGRATED] if is_migrated and layer is not None else []
    if tokens := config.draft_head:
        problems.attempt(_require_head, tokens, model, precision)
    text = None
    if config.draft is not None:
        text = problems.attempt(
            _checked_draft, config.draft, config, model, has_layer=layer is not None
        )
    ngrams = None
    if config.ngrams is not None:
        ngrams = problems.attempt(_read_ngrams, config.ngrams, model)
    return DraftParts(text, layer, tokens or None, ngrams, tuple(warnings))


def _read_ngrams(path: Path, model: ModelSpec) -> bytes:
    """Return the content of an n-gram file. Raises UsageError unless it fits ``model``."""
    remedy = "write it with skipdec ngrams, from this model's tokenizer"
    subject = f"ngrams {path}"
    content = read_file(path, UsageError, subject=subject, remedy=remedy, limit=MAX_NGRAMS_BYTES)
    parse_ngrams(content, model.vocab_size, UsageError, subject=subject, remedy=remedy)
    return content


def _checked_draft(text: str, config: ExportConfig, model: ModelSpec, *, has_layer: bool) -> str:
    """Return the canonical ``text``. Raises UsageError if the bundle could not run these drafts."""
    if is_auto(text):
        raise UsageError("draft", "is auto, which stands for the text given here; name drafts")
    draft = parse_draft(text)
    if draft is None:
        return "off"
    problems = draft_problems(
        draft,
        device=default_device(config.target),
        kernels=config.own_kernels,
        precision=config.precision(),
        num_layers=model.num_layers,
        has_draft_layer=has_layer,
    )
    if problems:
        raise UsageError("draft", *problems)
    return str(draft)


def _require_head(tokens: int, model: ModelSpec, precision: PrecisionSpec) -> None:
    problems = []
    if tokens >= model.vocab_size:
        most = (model.vocab_size - 1) // DRAFT_HEAD_MULTIPLE * DRAFT_HEAD_MULTIPLE
        allowed = f"multiples of {DRAFT_HEAD_MULTIPLE} up to {most}" if most else "0"
        problems.append(
            f"is {tokens}; allowed: {allowed}, fewer than the vocabulary's {model.vocab_size}"
        )
    if (reason := uncut_head(precision)) is not None:
        problems.append(f"is {tokens}, but {reason}; or leave it out")
    if problems:
        raise UsageError("draft_head", *problems)
