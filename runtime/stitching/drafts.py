"""The engines that only drafts run, loaded when a draft first needs them."""

from __future__ import annotations

from threading import Lock
from typing import NamedTuple

from ...engines.backends.session import EngineBackend, EngineSession
from ...engines.bundle import EngineBundle
from ...engines.manifest import DRAFT_HEAD, EngineSpec, TrainedDraft


class TrainedEngines(NamedTuple):
    """The loaded engines of trained drafts."""

    spec: TrainedDraft
    states: EngineSession
    entry: EngineSession
    layer: EngineSession
    head: EngineSession


class DraftEngines:
    """The trained draft and the narrow head of ``bundle``, loaded when they are first used.

    Loading hashes weights if the bundle requires it; the narrow head reads the weights of the head,
    which were hashed with it. Raises the errors of the backend's ``load``. Any thread may load
    them.
    """

    def __init__(self, bundle: EngineBundle, backend: EngineBackend) -> None:
        self._bundle = bundle
        self._backend = backend
        self._loading = Lock()
        self._loaded: dict[str, EngineSession] = {}  # by name

    def load(self, *, layer: bool) -> None:
        """Load the narrow head, and with ``layer`` the trained drafts, if the bundle has them."""
        draft, head = self._bundle.manifest.trained_draft, self._bundle.manifest.draft_head
        for engine in draft.engines if draft is not None and layer else ():
            self._load(engine)
        if head is not None:
            self._load(head.engine)

    @property
    def trained(self) -> TrainedEngines:
        """The engines of trained drafts, which the bundle must have."""
        draft = self._bundle.manifest.trained_draft
        assert draft is not None, "drafts were resolved against the bundle"
        return TrainedEngines(draft, *map(self._load, draft.engines))

    @property
    def reads(self) -> tuple[int, ...]:
        """The numbers of layers after which passes keep states; empty until they are loaded."""
        draft = self._bundle.manifest.trained_draft
        is_loaded = draft is not None and draft.layer.name in self._loaded
        return draft.reads if draft is not None and is_loaded else ()

    @property
    def head(self) -> EngineSession | None:
        """The head of the first ``head_tokens`` tokens; None without one."""
        draft = self._bundle.manifest.draft_head
        return None if draft is None else self._load(draft.engine)

    @property
    def head_tokens(self) -> int | None:
        """Number of tokens that the narrow head scores; None without one."""
        draft = self._bundle.manifest.draft_head
        return None if draft is None else draft.tokens

    def _load(self, engine: EngineSpec) -> EngineSession:
        with self._loading:
            if engine.name not in self._loaded:
                is_checked = engine.name == DRAFT_HEAD or self._backend.hashes_weights(engine)
                with self._bundle.weights_checked(() if is_checked else (engine,)):
                    self._loaded[engine.name] = self._backend.load(self._bundle, engine)
            return self._loaded[engine.name]
