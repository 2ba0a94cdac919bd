"""The prompt template of a tuned checkpoint: a small file beside its schedule.

    {"prompt_template": "{prompt}\\nTL;DR:"}

A tuned model answers worse without its template, so tuning saves the template in the checkpoint,
export copies it to the bundle, and the runtime wraps text prompts in it.
"""

from __future__ import annotations

import json
from pathlib import Path

from ...engines.documents import read_object
from ...engines.errors import CheckpointError
from ...engines.manifest import PROMPT_PLACEHOLDER

TEMPLATE_NAME = "prompt_template.json"
_KEY = "prompt_template"


def read_template(directory: Path) -> str | None:
    """Return the template of the checkpoint in ``directory``; None if it has none.

    Raises CheckpointError unless the file has a text with ``{prompt}`` exactly once.
    """
    path = directory / TEMPLATE_NAME
    if not path.exists():
        return None
    template = read_object(path, CheckpointError).get(_KEY)
    if not isinstance(template, str) or template.count(PROMPT_PLACEHOLDER) != 1:
        raise CheckpointError(
            str(path),
            f"has {template!r:.80} as {_KEY!r}; allowed: a text with {{prompt}} once; delete the "
            "file if prompts need no template",
        )
    return template


def template_files(template: str | None) -> dict[str, bytes]:
    """Return the file that `read_template` reads, by name; {} without a template."""
    if template is None or template == PROMPT_PLACEHOLDER:
        return {}
    content = json.dumps({_KEY: template}, indent=2, ensure_ascii=False)
    return {TEMPLATE_NAME: f"{content}\n".encode()}
