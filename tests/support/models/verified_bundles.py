"""Verify a bundle in this process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from skipdec.engines.host.events import Events
from skipdec.exporter.config import CheckpointSource
from skipdec.exporter.verification.bundle import verify_bundle
from skipdec.exporter.verification.report import VerificationReport, VerificationRequest


def verified(bundle: Path, checkpoint: Path, **options: Any) -> VerificationReport:  # noqa: ANN401
    """Compare ``bundle`` with ``checkpoint``; ``options`` are fields of the request."""
    source = CheckpointSource(model=str(checkpoint))
    request = VerificationRequest(directory=bundle, source=source, **options)
    return verify_bundle(request, Events())
