"""``skipdec verify``: is a bundle whole, and does it compute what its model does?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ...engines.host.console import print_json, reports_errors

if TYPE_CHECKING:
    from ...engines.bundle import EngineBundle
    from ..verification.report import VerificationReport


def register(app: typer.Typer) -> None:
    """Add ``verify`` to ``app``."""
    app.command(
        "verify",
        epilog="Examples: skipdec verify opt-1.3b-int8.skipdec\n\n"
        "skipdec verify opt-1.3b-int8.skipdec --reference facebook/opt-1.3b\n\n"
        "skipdec verify opt-1.3b.skipdec --reference opt-1.3b --load-format dummy --seed 0 --json",
    )(verify)


@reports_errors
def verify(
    bundle: Annotated[Path, typer.Argument(metavar="BUNDLE", help="a bundle's directory")],
    reference: Annotated[
        str | None,
        typer.Option(metavar="MODEL", help="the checkpoint it was made of; default: hashes only"),
    ] = None,
    load_format: Annotated[
        Literal["auto", "safetensors", "bin", "dummy"], typer.Option(help="of the reference")
    ] = "auto",
    revision: Annotated[str | None, typer.Option(help="of the reference on the hub")] = None,
    local_files_only: Annotated[bool, typer.Option(help="never use the network")] = False,
    atol: Annotated[
        float | None,
        typer.Option(
            help="largest difference, as a fraction of the largest value; default: by precision"
        ),
    ] = None,
    ranges: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="its --ranges, if that migrated outliers into weights"),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="of dummy weights and test prompts")] = 0,
    verify_memory: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="for a whole reference model, e.g. 8GiB (the default)"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """Check every byte of BUNDLE and, with --reference, every engine and the greedy tokens."""
    from ...engines.bundle import EngineBundle

    if reference is None:
        opened = EngineBundle.open(bundle, verify="full")
        _print(opened, None, as_json)
        return
    from ...engines.host.console import parse_memory_size
    from ...engines.host.progress import ConsoleProgress
    from ..config import CheckpointSource
    from ..verification.process import run_verification
    from ..verification.report import VerificationRequest

    opened = EngineBundle.open(bundle)
    values: dict[str, Any] = {
        "directory": opened.path,
        "source": CheckpointSource(
            model=reference,
            load_format=load_format,
            revision=revision,
            local_files_only=local_files_only,
            seed=seed,
        ),
        "precision": opened.manifest.precision,
        "ranges": ranges,
        "atol": atol,
    }
    if verify_memory is not None:
        values["verify_memory"] = parse_memory_size(verify_memory, "--verify-memory")
    request = VerificationRequest(**values)
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
