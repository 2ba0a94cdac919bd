"""The command itself: help that can be copied, slips of the pen, the version, completion."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from typer.core import TyperGroup
from typer.testing import CliRunner, Result

from skipdec import __version__, cli


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli.build_app(), list(arguments), env={"COLUMNS": "80"})


def commands() -> Iterator[tuple[list[str], str]]:
    """Each command's words and the text below its options."""
    for name in cli._COMMANDS:
        command: Any = cli._load(name)
        found = command.commands if isinstance(command, TyperGroup) else {"": command}
        yield from (([name, *inner.split()], entry.epilog) for inner, entry in found.items())


@pytest.mark.parametrize(
    ("words", "epilog"), [pytest.param(*c, id=" ".join(c[0])) for c in commands()]
)
def test_examples_can_be_copied_from_80_columns(words: list[str], epilog: str) -> None:
    shown = run(*words, "--help").stdout
    assert not re.search(r"--\S+ .*<list\[", shown), "a type is one value's, repeated or not"
    assert all(len(line) <= 80 for line in shown.splitlines())
    assert not re.search(r"^│ [* ] *-\S*…", shown, re.MULTILINE), "names are whole"
    joined = re.sub(r" \\\n +", " ", shown)
    examples = re.findall(r"^ *((?:skipdec|torchrun|head) .*)$", epilog, re.MULTILINE)
    assert examples
    for example in examples:
        assert re.search(rf"^ +{re.escape(example)}$", joined, re.MULTILINE), example


def test_the_version_is_told() -> None:
    assert run("--version").stdout == f"skipdec {__version__}\n"


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["genrate"], "Did you mean 'generate'?"),
        (["schedule", "shwo"], "Did you mean 'show'?"),
        (["inspect", "bundle", "--shedule", "2x"], "--schedule"),
    ],
)
def test_a_slip_in_a_command_or_option_is_answered_with_what_was_meant(
    words: list[str], meant: str
) -> None:
    result = run(*words)
    assert result.exit_code == 2
    assert meant in result.stderr


def test_a_shell_completes_options_of_commands_that_are_not_loaded() -> None:
    line = {
        "_SKIPDEC_COMPLETE": "complete_bash",
        "COMP_WORDS": "skipdec bench --sch",
        "COMP_CWORD": "2",
    }
    result = CliRunner().invoke(cli.build_app(), [], env=line, prog_name="skipdec")
    assert result.stdout.split() == ["--schedule"]
