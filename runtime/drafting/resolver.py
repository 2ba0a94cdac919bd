"""DraftResolver: the drafts of a call, checked against the bundle that runs it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from ...engines.errors import UsageError, shown
from ...engines.kernels.formats import foreign_products
from ...engines.manifest import Manifest
from ..schedule import ExitSchedule, LayerPlan
from ..schedule.text import format_schedule
from .config import DraftConfig, DraftPart, is_auto, parse_draft
from .layers import byte_share, depth_problem, draft_plan, least_layers

_LOGGER = logging.getLogger(__name__)
_MAX_CACHED_TEXTS = 128


@dataclass(frozen=True)
class DraftResolver:
    """Resolves the draft text of a call; None stands for ``default``, that of the opened bundle.

    ``device`` is what the bundle runs on: cpu, rehearsal or cuda. ``own`` is its schedule, whose
    placement chooses layers that draft. ``recommended`` returns what ``auto`` stands for; it is
    called when a call asks for it.
    """

    manifest: Manifest
    device: str
    own: ExitSchedule
    recommended: Callable[[], DraftConfig | None]
    default: str | None = None

    def resolve(self, wanted: str | None = None) -> DraftConfig | None:
        """Return the drafts of a call, or None for none. The last texts are cached.

        Raises UsageError for an invalid text, and for a bundle in which drafts could change texts;
        BundleError if ``auto`` is wanted and the bundle's draft.json is damaged.
        """
        text = self.default if wanted is None else wanted
        return self._resolve_once(text) if isinstance(text, str) else parse_draft(text)

    def check(self, config: DraftConfig | None) -> None:
        """Raise UsageError, with all problems, if this bundle cannot run ``config``."""
        if config is None:
            return
        problems = [
            *self._unsupported(),
            *self._inexact(config),
            *self._beyond_depth(config),
            *self._without_layer(config),
            *self._without_head(config),
        ] or list(self._misplaced(config))
        if problems:
            raise UsageError("draft", *problems)

    def warn_of_unused(self, config: DraftConfig | None, schedules: Sequence[ExitSchedule]) -> None:
        """Log, once, that drafts of layers run some that no token of ``schedules`` runs."""
        for part in () if config is None else config.parts:
            if not part.runs_layers:
                continue
            needed = {layer for layer in self.plan(part) if layer < self.own.num_layers}
            # Later plans of a schedule are parts of its first.
            shallow = [one for one in schedules if not needed.issubset(one.plan(0))]
            if shallow and len(shallow) == len(schedules):
                self._warn_once(
                    f"draft {part} needs layers that schedule {format_schedule(shallow[0])} never "
                    "runs, so it drafts nothing: choose fewer layers, another part, or a deeper "
                    "schedule"
                )

    @cached_property
    def _warn_once(self) -> Callable[[str], None]:
        return lru_cache(maxsize=_MAX_CACHED_TEXTS)(_LOGGER.warning)

    def plan(self, part: DraftPart) -> LayerPlan:
        """Return the layers that a part of resolved drafts runs, by the bundle's own placement."""
        return draft_plan(part, self.own, self.manifest.draft_layer)

    def draft_prior(self, plan: LayerPlan, *, narrow: bool) -> float:
        """Return what a draft step of ``plan`` should cost, in passes over one token."""
        return byte_share(self.manifest, plan, narrow=narrow)

    @cached_property
    def _resolve_once(self) -> Callable[[str], DraftConfig | None]:
        """`_resolve_text` with a cache that any thread may use."""
        return lru_cache(maxsize=_MAX_CACHED_TEXTS)(self._resolve_text)

    def _resolve_text(self, text: str) -> DraftConfig | None:
        config = self.recommended() if is_auto(text) else parse_draft(text)
        self.check(config)
        return config

    def _unsupported(self) -> Iterator[str]:
        """Yield a problem if the engines cannot run drafts at all."""
        if self.manifest.build is not None:
            yield (
                "needs engines that run several tokens of a row in one step; TensorRT's plans are "
                "built for one; leave out draft"
            )

    def _inexact(self, config: DraftConfig) -> Iterator[str]:
        """Yield a problem if results may depend on how many tokens of a row share a pass.

        skipdec's kernels give the same bits for a token whatever else is in the call. Products
        that they lack are ONNX Runtime's, and so are all operators of other bundles.
        """
        if not config.exact:
            return
        if self.device == "cuda":
            yield (
                "does not keep the bits on a GPU, where products round otherwise when a row feeds "
                "several tokens: on an H200 texts were equal, log-probabilities not bit for bit; "
                "leave out draft, use device='cpu', or allow texts that differ by rounding with "
                "exact=no"
            )
        elif self.manifest.kernels != "skipdec":
            yield (
                "needs skipdec's kernels: with ONNX Runtime's operators texts may differ by "
                "rounding; rewrite the bundle with `skipdec build BUNDLE --target onnxruntime "
                "--kernels skipdec`, or allow it with exact=no"
            )
        elif foreign := foreign_products(self.manifest.precision):
            yield (
                f"needs weights of int8, int4 or 16 bits: products of {' and '.join(foreign)} "
                "weights are ONNX Runtime's, and texts may differ by rounding; export the model "
                "with --quantize int8, or allow it with exact=no"
            )

    def _beyond_depth(self, config: DraftConfig) -> Iterator[str]:
        """Yield a problem for each part with as many layers as the model has, or more."""
        problems = (depth_problem(part, self.manifest.model.num_layers) for part in config.parts)
        yield from (problem for problem in problems if problem is not None)

    def _misplaced(self, config: DraftConfig) -> Iterator[str]:
        """Yield a problem for each part with fewer layers than the bundle's placement has."""
        for part in config.parts:
            if part.number is None or part.number >= (least := least_layers(part, self.own)):
                continue
            yield (
                f"{part}: min_exit_layer is {part.number}; allowed with placement "
                f"{self.own.placement}: {least} or more; take another number, ends:N or first:N"
            )

    def _without_layer(self, config: DraftConfig) -> Iterator[str]:
        """Yield a problem if the text asks for a draft layer that is not there."""
        if config.uses_draft_layer and self.manifest.draft_layer is None:
            yield (
                "trained needs a draft layer, which the bundle does not have; train one with "
                "`skipdec tune --draft-layer` and export the model with --draft"
            )

    def _without_head(self, config: DraftConfig) -> Iterator[str]:
        """Yield a problem if the text names a narrow head that is not there or not used."""
        if config.head is None:
            return
        held = self.manifest.draft_head
        if not any(part.runs_layers for part in config.parts):
            yield f"head is {config.head}, but no part runs layers; leave it out, or add ends:3"
        elif held is None:
            yield (
                f"head is {config.head}, but the bundle has no narrow head; leave it out, or "
                "export the model with --draft-head"
            )
        elif held.tokens != config.head:
            yield f"head is {config.head}; allowed: {held.tokens}, the bundle's narrow head"


def wants_drafts(wanted: str | None) -> bool:
    """Return whether a request takes part in drafts: ``off`` switches them off for it alone.

    Raises UsageError for another text; the drafts of all requests are chosen at opening.
    """
    if wanted is None:
        return True
    if wanted == "off":
        return False
    raise UsageError(
        "draft",
        f"is {shown(wanted)}; allowed in a request: off, or none given; drafts are chosen when the "
        "bundle is opened",
    )
