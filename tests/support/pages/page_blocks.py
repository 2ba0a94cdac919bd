"""Extract blocks of code from README.md and docs/, and run their commands."""

from __future__ import annotations

import json
import os
import re
import shlex
import string
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[3]
PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md"))
    if not path.is_relative_to(ROOT / "docs" / "reference")  # generated
)

_RUN = """
import json, sys
from typer.testing import CliRunner
from skipdec.cli import build_app
outputs = []
for arguments in json.load(sys.stdin):
    result = CliRunner().invoke(build_app(), arguments)
    if result.exit_code:
        sys.exit(f"{arguments} exits with {result.exit_code}: {result.output} {result.exception!r}")
    outputs.append(result.stdout)
json.dump(outputs, sys.stdout)
"""


def blocks(page: str, language: str, heading: str | None = None) -> list[str]:
    """Return a page's blocks of one language, optionally of one section."""
    text = (ROOT / page).read_text(encoding="utf-8")
    if heading is not None:
        text = re.split(r"\n## ", text.split(f"\n## {heading}\n")[1])[0]
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def skipdec_commands(shell: str) -> list[tuple[str, ...]]:
    """Return the arguments of each ``skipdec`` command of a block, with variables expanded."""
    variables: dict[str, str] = {}
    commands = []
    for line in shell.replace("\\\n", " ").splitlines():
        words = [
            string.Template(word).safe_substitute(variables) for word in shlex.split(line, True)
        ]
        if len(words) == 1 and "=" in words[0]:
            name, value = words[0].split("=", 1)
            variables[name] = value
        elif words[:1] == ["skipdec"]:
            commands.append(tuple(words[1:]))
    return commands


def run_commands(
    commands: Iterable[tuple[str, ...]], directory: Path
) -> dict[tuple[str, ...], str]:
    """Run the commands in one process, which imports torch once; return each one's output."""
    distinct = list(dict.fromkeys(commands))
    printed = run_python(_RUN, directory, stdin=json.dumps(distinct))
    return dict(zip(distinct, json.loads(printed), strict=True))


def run_python(program: str, directory: Path, stdin: str = "") -> str:
    """Run a program in its own process and return its output."""
    result = subprocess.run(
        [sys.executable, "-c", program],
        input=stdin,
        cwd=directory,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout
