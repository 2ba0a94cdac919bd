"""DraftResolver: the drafts of a call, checked against the bundle that runs it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from ...engines.errors import UsageError, shown
from ...engines.kernels.formats import KERNEL_BLOCKS, foreign_products
from ...engines.manifest import Manifest, PrecisionSpec
from ...engines.targets import default_device, target_of
from ..schedule import ExitSchedule, LayerPlan
from ..schedule.text import format_schedule
from .config import DraftConfig, DraftPart, is_auto, parse_draft
from .layers import byte_share, depth_problem, draft_plan, trained_share

_LOGGER = logging.getLogger(__name__)
_MAX_CACHED_TEXTS = 128
_RECOMMENDED = "own"  # what `auto` means if the manifest names no drafts


@dataclass(frozen=True)
class DraftResolver:
    """Resolves the draft text of a call; None means ``default``, the text given at opening.

    ``auto`` means the drafts that the bundle recommends, or ``own``. ``device`` is where the bundle
    runs, such as ``cuda:1``; None is the target's default.
    """

    manifest: Manifest
    device: str | None = None
    default: str | None = None

    def resolve(self, wanted: str | None = None) -> DraftConfig | None:
        """Return the drafts of a call, or None for none. The last texts are cached.

        Raises UsageError for an invalid text, and for a bundle in which drafts could change texts.
        """
        text = self.default if wanted is None else wanted
        return self._resolve_once(text) if isinstance(text, str) else parse_draft(text)

    def warn_of_unused(self, config: DraftConfig | None, schedules: Sequence[ExitSchedule]) -> None:
        """Log once if drafts need layers that no token of ``schedules`` runs."""
        for part in () if config is None else config.parts:
            if part.number is None:
                continue
            needed = set(self.plan(part))
            # Later plans of a schedule are parts of its first.
            shallow = [one for one in schedules if not needed.issubset(one.plan(0))]
            if shallow and len(shallow) == len(schedules):
                self._warn_once(
                    f"draft {part} needs layers that schedule {format_schedule(shallow[0])} never "
                    "runs, so it drafts nothing: choose fewer layers, another part, or a deeper "
                    "schedule"
                )

    def plan(self, part: DraftPart) -> LayerPlan:
        """Return the layers of the model that a part of resolved drafts runs."""
        return draft_plan(part, self.manifest.model.num_layers)

    def draft_prior(self, part: DraftPart) -> float:
        """Return the expected cost of a part's draft step, in passes over one token."""
        if part.name == "trained":
            return trained_share(self.manifest)
        return byte_share(self.manifest, self.plan(part))

    @cached_property
    def _warn_once(self) -> Callable[[str], None]:
        return lru_cache(maxsize=_MAX_CACHED_TEXTS)(_LOGGER.warning)

    @cached_property
    def _resolve_once(self) -> Callable[[str], DraftConfig | None]:
        """`_resolve_text` with a cache that any thread may use."""
        return lru_cache(maxsize=_MAX_CACHED_TEXTS)(self._resolve_text)

    def _resolve_text(self, text: str) -> DraftConfig | None:
        manifest = self.manifest
        config = parse_draft((manifest.draft or _RECOMMENDED) if is_auto(text) else text)
        if config is None:
            return None
        if target_of(manifest.target).is_compiled:
            raise UsageError(
                "draft",
                "needs engines that run several tokens of a row in one step; TensorRT's plans are "
                "built for one; leave out draft",
            )
        problems = draft_problems(
            config,
            device=self.device or default_device(manifest.target),
            kernels=manifest.kernels,
            precision=manifest.precision,
            num_layers=manifest.model.num_layers,
            has_draft_layer=manifest.trained_draft is not None,
        )
        if problems:
            raise UsageError("draft", *problems)
        return config


def draft_problems(
    config: DraftConfig,
    *,
    device: str,
    kernels: str | None,
    precision: PrecisionSpec,
    num_layers: int,
    has_draft_layer: bool,
) -> list[str]:
    """Return why a bundle with these properties can't run ``config`` on ``device``."""
    problems = list(_inexact(device, kernels, precision)) if config.exact else []
    depths = (depth_problem(part, num_layers) for part in config.parts)
    problems += [problem for problem in depths if problem is not None]
    if config.uses_draft_layer and not has_draft_layer:
        problems.append(
            "trained needs a draft layer, which the bundle does not have; train one with "
            "`skipdec tune --draft-layer` and export the model with --draft-layer"
        )
    return problems


def _inexact(device: str, kernels: str | None, precision: PrecisionSpec) -> Iterator[str]:
    """Yield a problem if results may depend on how many tokens of a row share a pass.

    skipdec's kernels give the same bits for a token whatever else is in the call. ONNX Runtime
    computes the products that they lack, and all operators of bundles without these kernels.
    """
    if device.partition(":")[0] == "cuda":
        yield (
            "does not keep the bits on a GPU, where products round otherwise when a row feeds "
            "several tokens: on an H200 texts were equal, log-probabilities not bit for bit; "
            "leave out draft, use device='cpu', or allow texts that differ by rounding with "
            "exact=no"
        )
    elif kernels != "skipdec":
        yield (
            "needs skipdec's kernels: with ONNX Runtime's operators texts may differ by "
            "rounding; export the model with --kernels skipdec, or allow it with exact=no"
        )
    elif foreign := foreign_products(precision):
        yield (
            f"needs products of skipdec's kernels: those of {' and '.join(foreign)} weights are "
            "ONNX Runtime's, and texts may differ by rounding; export the model with a block size "
            f"of {KERNEL_BLOCKS} and accuracy level 4, or allow it with exact=no"
        )


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
