"""The engines that only drafts run, loaded when a draft first asks for them."""

from __future__ import annotations

from threading import Lock

from ...engines.backends.session import EngineBackend, EngineSession
from ...engines.bundle import EngineBundle
from ...engines.manifest import EngineKind, EngineSpec


class DraftEngines:
    """The draft layer and the narrow head of ``bundle``; nothing is read until they are used.

    Loading hashes the layer's weights where the bundle asks for it; the narrow head reads the
    weights of the head, which were hashed with it. Raises the errors of the backend's ``load``. Any
    thread may load them.
    """

    def __init__(self, bundle: EngineBundle, backend: EngineBackend) -> None:
        self._bundle = bundle
        self._backend = backend
        self._loading = Lock()
        self._loaded: dict[str, EngineSession] = {}  # by name

    @property
    def layer(self) -> EngineSession | None:
        """The draft layer, behind the model's first ``behind`` layers; None: there is none."""
        draft = self._bundle.manifest.draft_layer
        return None if draft is None else self._load(draft.engine)

    @property
    def head(self) -> EngineSession | None:
        """The head of the first ``head_tokens`` tokens; None: there is none."""
        draft = self._bundle.manifest.draft_head
        return None if draft is None else self._load(draft.engine)

    @property
    def behind(self) -> int | None:
        """Number of the model's layers that run before the draft layer; None without one."""
        draft = self._bundle.manifest.draft_layer
        return None if draft is None else draft.behind

    @property
    def head_tokens(self) -> int | None:
        """Number of tokens that the narrow head scores; None without one."""
        draft = self._bundle.manifest.draft_head
        return None if draft is None else draft.tokens

    def _load(self, engine: EngineSpec) -> EngineSession:
        with self._loading:
            if engine.name not in self._loaded:
                is_checked = engine.kind is EngineKind.HEAD or self._backend.hashes_weights(engine)
                with self._bundle.weights_checked(() if is_checked else (engine,)):
                    self._loaded[engine.name] = self._backend.load(self._bundle, engine)
            return self._loaded[engine.name]


def draft_engines(bundle: EngineBundle, backend: EngineBackend) -> DraftEngines | None:
    """Return the engines of drafts, not loaded; None for a bundle without any, which is let go."""
    return DraftEngines(bundle, backend) if bundle.manifest.draft_engines else None
