"""Run the command line in this process or in its own."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from typer.testing import CliRunner, Result

from skipdec.cli import build_app

_FILES, _NUMBERS = TemporaryDirectory(), count()
SKIPDEC = (sys.executable, "-m", "skipdec")


def run(*arguments: object, **options: Any) -> Result:  # noqa: ANN401
    """Run ``skipdec`` in this process; ``options`` go to Typer's runner, such as ``input``."""
    return CliRunner().invoke(build_app(), [str(each) for each in arguments], **options)


def config(**fields: Any) -> tuple[str, str]:  # noqa: ANN401
    """Write ``fields`` to a file; return the words ``--config FILE``."""
    path = Path(_FILES.name) / f"options-{next(_NUMBERS)}.yaml"
    path.write_text(json.dumps(fields))  # JSON is YAML
    return "--config", str(path)


def run_process(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run ``skipdec`` in its own process, which may set the shared thread pool."""
    command = [*SKIPDEC, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
