"""The text that a tuned checkpoint's prompts stand in: a small file beside its schedule.

    {"prompt_template": "{prompt}\\nTL;DR:"}

A model that learnt to answer there answers worse without, so the template goes from the tuning into
the checkpoint and from there into the bundle, whose runtime puts text prompts into it.
"""

from __future__ import annotations

import json
from pathlib import Path

from ...engines.documents import read_json
from ...engines.errors import CheckpointError
from ...engines.manifest import PROMPT_PLACEHOLDER

TEMPLATE_NAME = "prompt_template.json"
_KEY = "prompt_template"


def read_template(directory: Path) -> str | None:
    """Return the template of the checkpoint in ``directory``; None where it has none.

    Raises CheckpointError for a file that holds no text with ``{prompt}`` in it, once.
    """
    path = directory / TEMPLATE_NAME
    if not path.exists():
        return None
    document = read_json(path, CheckpointError)
    template = document.get(_KEY) if isinstance(document, dict) else None
    if not isinstance(template, str) or template.count(PROMPT_PLACEHOLDER) != 1:
        raise CheckpointError(
            str(path),
            f"has {template!r:.80} as {_KEY!r}; allowed: a text with {{prompt}} once; delete the "
            "file if prompts stand alone",
        )
    return template


def template_files(template: str | None) -> dict[str, bytes]:
    """Return the file, by its name, that `read_template` reads; none for a prompt that is alone."""
    if template is None or template == PROMPT_PLACEHOLDER:
        return {}
    content = json.dumps({_KEY: template}, indent=2, ensure_ascii=False)
    return {TEMPLATE_NAME: f"{content}\n".encode()}
