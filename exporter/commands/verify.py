"""``skipdec verify``: check a bundle's files and, with its checkpoint, its results."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from pydantic import Field

from ...engines.bundle import EngineBundle
from ...engines.bundle.place import bundle_place
from ...engines.checking import MemorySize, Option, ValidatedConfig
from ...engines.errors import SkipDecError
from ...engines.host.console import print_json
from ...engines.host.options import AsJson, BundlePath, Quiet, from_options
from ...engines.manifest import Manifest
from ...engines.targets import target_of
from ..config import GIB, CheckpointSource, LoadFormat

if TYPE_CHECKING:
    from ..verification.report import VerificationReport


class ReferenceOptions(ValidatedConfig):
    """The checkpoint that a bundle is compared with."""

    model: Annotated[str | None, Option("--reference", metavar="MODEL")] = Field(
        default=None,
        description="the checkpoint it was exported from (else only hashes are checked)",
    )
    load_format: Annotated[LoadFormat, Option()] = Field(
        default="auto", description="format of the reference's weights"
    )
    revision: Annotated[str | None, Option()] = Field(
        default=None, description="revision of the reference on the hub"
    )
    local_files_only: Annotated[bool, Option()] = Field(
        default=False, description="never use the network"
    )
    atol: Annotated[float | None, Option()] = Field(
        default=None,
        gt=0,
        description="largest difference, as a fraction of the largest value (by precision)",
    )
    max_divergence: Annotated[float | None, Option()] = Field(
        default=None,
        gt=0,
        description="nats per token that quantisation may cost (by precision)",
    )
    seed: Annotated[int, Option()] = Field(
        default=0, ge=0, description="seed of dummy weights and test prompts"
    )
    verify_memory: Annotated[MemorySize, Option()] = Field(
        default=8 * GIB, description="limit for a bundle whose engines are loaded all at once"
    )
    ranges: Annotated[Path | None, Option(metavar="FILE")] = Field(
        default=None, description="the export's --ranges, if they migrated outliers"
    )
    draft_layer: Annotated[Path | None, Option(metavar="DIR")] = Field(
        default=None, description="the export's --draft-layer, to compare it, too"
    )

    def _problems(self) -> Iterator[str]:
        if self.model is None:
            for name in sorted(self.model_fields_set - {"model"}):
                yield f"`{name}` is for a comparison; give --reference MODEL, or leave it out"

    def source(self) -> CheckpointSource | None:
        """Return the checkpoint, if one was named."""
        if self.model is None:
            return None
        return CheckpointSource(
            model=self.model,
            load_format=self.load_format,
            revision=self.revision,
            local_files_only=self.local_files_only,
            seed=self.seed,
        )


EXAMPLES = """
Examples:

\b
skipdec verify opt-1.3b-int8.skipdec

\b
skipdec verify opt-1.3b-int8.skipdec --reference facebook/opt-1.3b

\b
skipdec verify opt-1.3b.skipdec --reference opt-1.3b --load-format dummy \\
    --seed 0 --json
"""


@from_options
def verify(
    bundle: BundlePath,
    reference: ReferenceOptions,
    *,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Check every byte of BUNDLE and, with --reference, every engine and the greedy tokens."""
    from ...engines.host.progress import ConsoleProgress
    from ..verification.process import verify_bundle

    try:
        with ConsoleProgress(quiet=quiet) as progress:
            report = verify_bundle(
                bundle,
                reference.source(),
                ranges=reference.ranges,
                draft_layer=reference.draft_layer,
                atol=reference.atol,
                max_divergence=reference.max_divergence,
                verify_memory=reference.verify_memory,
                events=progress,
            )
    except SkipDecError as error:
        if as_json:
            failure = {"subject": error.subject, "problems": list(error.problems)}
            print_json({"bundle": str(bundle), "passed": False, "error": failure})
        raise
    manifest = EngineBundle.read_manifest(bundle)  # the bundle that was just checked
    _print(bundle_place(bundle).target, manifest, report, as_json)


def _print(
    path: Path, manifest: Manifest, report: VerificationReport | None, as_json: bool
) -> None:
    files = len(manifest.files)
    if as_json:
        document = {
            "bundle": str(path),
            "passed": True,
            "digest": manifest.digest,
            "files": files,
            "report": None if report is None else report.model_dump(mode="json"),
        }
        print_json(document)
        return
    typer.echo(f"{path}: all {files} files match manifest.json")
    if report is None and target_of(manifest.target).is_compiled:
        typer.echo(
            "plans were not run; --reference MODEL compares them on a machine with their GPU"
        )
    if report is not None:
        for line in report.summary():
            typer.echo(line)
