"""Verify in this process, for tests of verification itself."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from skipdec.engines.host.events import Events
from skipdec.exporter.verification.bundle import verify_bundle
from skipdec.exporter.verification.report import VerificationRequest


class InProcessVerifier(AbstractContextManager["InProcessVerifier"]):
    """Replaces the Worker that ``start_verifier`` returns; its report passes through JSON too."""

    def __exit__(self, *_: object) -> None:
        pass

    def run(self, request: str, on_progress: Callable[[Any], None]) -> Any:  # noqa: ANN401
        """Return the content of the report on ``request``."""
        report = verify_bundle(VerificationRequest.from_json(request), _Forwarded(on_progress))
        return report.model_dump(mode="json")


class _Forwarded(Events):
    """Passes events on as the lines that the verifying process writes."""

    def __init__(self, on_progress: Callable[[Any], None]) -> None:
        self._on_progress = on_progress

    def stage(self, name: str, total: int | None = None) -> None:
        self._on_progress(["stage", name, total])

    def advance(self, item: str = "", steps: int = 1, *, detail: str = "") -> None:
        self._on_progress(["advance", item, steps])
