"""``skipdec push``: upload a bundle or a checkpoint to the Hugging Face hub."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ...engines.errors import UsageError
from ...engines.host.console import print_json, reports_errors, result_console, stderr_console
from ...engines.host.options import AsJson

EXAMPLES = """
[bold]Examples[/bold]

skipdec push opt-e2e.skipdec me/opt-e2e-int8 --private

skipdec push ./opt-e2e-2x me/opt-e2e-2x --revision two-times

Then, anywhere: hf download me/opt-e2e-int8 --local-dir opt-e2e.skipdec

README.md is the model card; name a licence in its first block before you make it public. The hub's
own settings apply: HF_TOKEN or `hf auth login`, HF_ENDPOINT.

Exit codes: 0 pushed, 1 failed, 2 usage, 3 environment, 130 interrupted.
"""


@reports_errors
def push(
    path: Annotated[
        Path, typer.Argument(metavar="BUNDLE|CHECKPOINT", help="its directory, checked first")
    ],
    repo_id: Annotated[str, typer.Argument(metavar="REPO_ID", help="me/my-model")],
    *,
    private: Annotated[
        bool | None,
        typer.Option("--private/--public", help="for a new repository (the hub's default)"),
    ] = None,
    revision: Annotated[
        str | None, typer.Option(metavar="BRANCH", help="created if missing (main)")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Upload a bundle or a checkpoint in one commit, after checking that it is complete."""
    if not path.is_dir():
        raise UsageError(str(path), "is not a directory; pass a bundle or a checkpoint")
    from ...engines.bundle import EngineBundle
    from ...engines.bundle.place import MANIFEST_NAME
    from ..checkpoint.checkpoint import push_checkpoint

    if (path / MANIFEST_NAME).exists():
        bundle = EngineBundle.open(path)
        url = bundle.push_to_hub(repo_id, private=private, revision=revision)
    else:
        url = push_checkpoint(path, repo_id, private=private, revision=revision)
    if not _names_a_licence(path):
        stderr_console().print("README.md names no licence, so its terms of use are unclear")
    if as_json:
        print_json({"url": url})
    else:
        result_console().print(url)


def _names_a_licence(directory: Path) -> bool:
    from huggingface_hub import metadata_load

    from ...engines.bundle.place import CARD_NAME

    card = directory / CARD_NAME
    return card.is_file() and "license" in (metadata_load(card) or {})
