"""``skipdec verify``: is a bundle whole, and does it compute what its model does?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from pydantic import Field

from ...engines.bundle import EngineBundle
from ...engines.checking import MemorySize, Option, ValidatedConfig
from ...engines.host.console import print_json
from ...engines.host.options import AsJson, BundlePath, from_options
from ..config import GIB, CheckpointSource, LoadFormat

if TYPE_CHECKING:
    from ..verification.report import VerificationReport


class ReferenceOptions(ValidatedConfig):
    """The checkpoint that a bundle is held against."""

    model: Annotated[str | None, Option("--reference", metavar="MODEL")] = Field(
        default=None, description="the checkpoint it was made of; default: hashes only"
    )
    load_format: Annotated[LoadFormat, Option()] = Field(
        default="auto", description="of the reference"
    )
    revision: Annotated[str | None, Option()] = Field(
        default=None, description="of the reference on the hub"
    )
    local_files_only: Annotated[bool, Option("--local-files-only/--no-local-files-only")] = Field(
        default=False, description="never use the network"
    )
    atol: Annotated[float | None, Option()] = Field(
        default=None,
        gt=0,
        description="largest difference, as a fraction of the largest value; default: by precision",
    )
    seed: Annotated[int, Option()] = Field(
        default=0, ge=0, description="of dummy weights and test prompts"
    )
    verify_memory: Annotated[MemorySize, Option()] = Field(
        default=8 * GIB, description="for a whole reference model"
    )


def register(app: typer.Typer) -> None:
    """Add ``verify`` to ``app``."""
    app.command(
        "verify",
        epilog="Examples: skipdec verify opt-1.3b-int8.skipdec\n\n"
        "skipdec verify opt-1.3b-int8.skipdec --reference facebook/opt-1.3b\n\n"
        "skipdec verify opt-1.3b.skipdec --reference opt-1.3b --load-format dummy --seed 0 --json",
    )(verify)


@from_options
def verify(
    bundle: BundlePath,
    reference: ReferenceOptions,
    *,
    ranges: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="its --ranges, if that migrated outliers into weights"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check every byte of BUNDLE and, with --reference, every engine and the greedy tokens."""
    if reference.model is None:
        _print(EngineBundle.open(bundle, verify="full"), None, as_json)
        return
    from ...engines.host.progress import ConsoleProgress
    from ..verification.process import run_verification
    from ..verification.report import VerificationRequest

    opened = EngineBundle.open(bundle)
    request = VerificationRequest(
        directory=opened.path,
        source=CheckpointSource(
            model=reference.model,
            load_format=reference.load_format,
            revision=reference.revision,
            local_files_only=reference.local_files_only,
            seed=reference.seed,
        ),
        precision=opened.manifest.precision,
        ranges=ranges,
        atol=reference.atol,
        verify_memory=reference.verify_memory,
    )
    with ConsoleProgress() as progress:
        report = run_verification(request, progress)
    _print(opened, report, as_json)


def _print(bundle: EngineBundle, report: VerificationReport | None, as_json: bool) -> None:
    files = len(bundle.manifest.files)
    if as_json:
        document = {
            "bundle": str(bundle.path),
            "digest": bundle.manifest.digest,
            "files": files,
            "report": None if report is None else report.model_dump(mode="json"),
        }
        print_json(document)
        return
    typer.echo(f"{bundle.path}: all {files} files are as manifest.json says")
    if report is None and bundle.manifest.build is not None:
        typer.echo("plans were not run; --reference MODEL compares them where their GPU is")
    if report is not None:
        for line in report.summary():
            typer.echo(line)
