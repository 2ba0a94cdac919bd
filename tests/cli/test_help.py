"""Test the command line itself: help, suggestions, the version and shell completion."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import command_line
import pytest
from typer.core import TyperGroup
from typer.testing import Result

from skipdec import __version__, cli

MOST_FLAGS = 25  # per command, besides --help; --config has all fields


def run(*arguments: str) -> Result:
    return command_line.run(*arguments, env={"COLUMNS": "80", "TERM": "dumb"})


def commands() -> Iterator[tuple[list[str], Any]]:
    """Return each command's words and its typer object."""
    for name in cli._COMMANDS:
        command: Any = cli._load(name)
        found = command.commands if isinstance(command, TyperGroup) else {"": command}
        yield from (([name, *inner.split()], entry) for inner, entry in found.items())


COMMANDS = [pytest.param(*each, id=" ".join(each[0])) for each in commands()]
LONG = ["export", "build", "compare", "verify", "bench", "generate", "calibrate", "round"]
LONG += ["evaluate", "tune", "fit"]


@pytest.mark.parametrize(("words", "command"), COMMANDS)
def test_help_has_every_flag_and_examples_that_run(
    words: list[str],
    command: Any,  # noqa: ANN401
) -> None:
    shown = run(*words, "--help").stdout
    assert all(len(line) <= 80 for line in shown.splitlines())
    options = [option for option in command.params if option.param_type_name == "option"]
    assert len(options) <= MOST_FLAGS
    for name in (name for option in options for name in option.opts):
        assert re.search(rf"^  .*{name}\b", shown, re.MULTILINE)
    examples = re.findall(r"^((?:skipdec|torchrun|head) (?:.*\\\n)*.*)$", command.epilog, re.M)
    assert examples
    for example in examples:
        assert example.replace("\n", "\n  ") in shown


def test_true_is_a_valid_prompt() -> None:
    for words in (["-q", "--", "true"], ["-q", "-p", "true"], ["true", "-q"]):
        assert "usage" not in run("generate", "no-bundle", *words).output.lower()


@pytest.mark.parametrize("name", LONG)
def test_long_running_commands_have_quiet_and_config(name: str) -> None:
    command: Any = cli._load(name)
    flags = {flag for option in command.params for flag in option.opts}
    assert flags >= {"-q", "--quiet", "--config"}


def test_the_version_is_printed() -> None:
    assert run("--version").stdout == f"skipdec {__version__}\n"


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["genrate"], "Did you mean 'generate'?"),
        (["schedule", "shwo"], "Did you mean 'show'?"),
        (["inspect", "bundle", "--shedule", "2x"], "--schedule"),
    ],
)
def test_misspelt_commands_and_options_get_a_suggestion(words: list[str], meant: str) -> None:
    result = run(*words)
    assert result.exit_code == 2
    assert meant in result.stderr


def test_a_shell_completes_options_of_unloaded_commands() -> None:
    line = {
        "_SKIPDEC_COMPLETE": "complete_bash",
        "COMP_WORDS": "skipdec bench --sch",
        "COMP_CWORD": "2",
    }
    result = command_line.run(env=line, prog_name="skipdec")
    assert result.stdout.split() == ["--schedule"]
