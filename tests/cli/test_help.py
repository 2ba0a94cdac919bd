"""The command itself: help that can be copied, suggestions, the version, completion."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import command_line
import pytest
from typer.core import TyperGroup
from typer.testing import Result

from skipdec import __version__, cli


def run(*arguments: str, columns: int = 80) -> Result:
    environment = {"COLUMNS": str(columns), "TERM": "dumb"}
    return command_line.run(*arguments, env=environment)


def commands() -> Iterator[tuple[list[str], str]]:
    """Return each command's words and the text below its options."""
    for name in cli._COMMANDS:
        command: Any = cli._load(name)
        found = command.commands if isinstance(command, TyperGroup) else {"": command}
        yield from (([name, *inner.split()], entry.epilog) for inner, entry in found.items())


COMMANDS = list(commands())
LONG = ["export", "build", "compare", "verify", "bench", "generate", "calibrate", "round"]
LONG += ["evaluate", "tune", "fit"]


@pytest.mark.parametrize("columns", [60, 80, 120])
@pytest.mark.parametrize("words", [words for words, _ in COMMANDS], ids=" ".join)
def test_help_has_whole_names_and_no_values_of_flags(words: list[str], columns: int) -> None:
    command: Any = cli._load(words[0])
    command = command.commands[words[1]] if len(words) > 1 else command
    lines = run(*words, "--help", columns=columns).stdout.splitlines()
    shown = [line.strip() for line in lines]
    begins = {word.strip(",") for line in shown for word in re.split(r" {2,}", line)[0].split()}
    for option in command.params:
        assert begins >= {name for name in option.opts if name.startswith("-")}
        assert begins >= set(option.secondary_opts)
        if option.metavar and not re.fullmatch(r"<[\w ]+>", option.metavar):
            assert any(str(option.metavar) in line for line in shown)
    assert not re.search(r"<(bool|str|int|float|path|int range|list\[.*)>", "\n".join(shown))
    options = lines[: next(place for place, line in enumerate(lines) if "Examples" in line)]
    assert all(len(line) <= columns for line in options)


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["generate", "bundle", "--quiet", "true"], "--quiet takes no value; leave 'true' out"),
        (["generate", "bundle", "-q", "False", "-p", "a"], "-q takes no value"),
        (["export", "model", "--no-verify", "true"], "--no-verify takes no value"),
    ],
)
def test_a_flag_with_a_truth_value_is_refused(words: list[str], problem: str) -> None:
    result = run(*words)
    assert result.exit_code == 2
    assert problem in " ".join(result.stderr.replace("│", "").split())


def test_true_can_still_be_a_prompt() -> None:
    for words in (["-q", "--", "true"], ["-q", "-p", "true"], ["true", "-q"]):
        assert "takes no value" not in run("generate", "no-bundle", *words).output


@pytest.mark.parametrize(
    ("words", "epilog"), [pytest.param(*c, id=" ".join(c[0])) for c in COMMANDS]
)
def test_examples_can_be_copied_from_80_columns(words: list[str], epilog: str) -> None:
    shown = run(*words, "--help").stdout
    assert all(len(line) <= 80 for line in shown.splitlines())
    joined = re.sub(r" \\\n +", " ", shown)
    examples = re.findall(r"^ *((?:skipdec|torchrun|head) .*)$", epilog, re.MULTILINE)
    assert examples
    for example in examples:
        assert re.search(rf"^ +{re.escape(example)}$", joined, re.MULTILINE), example


@pytest.mark.parametrize("name", LONG)
def test_commands_that_take_long_can_be_quiet(name: str) -> None:
    command: Any = cli._load(name)
    assert any({"-q", "--quiet"} <= set(option.opts) for option in command.params)


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


def test_a_shell_completes_options_of_commands_that_are_not_loaded() -> None:
    line = {
        "_SKIPDEC_COMPLETE": "complete_bash",
        "COMP_WORDS": "skipdec bench --sch",
        "COMP_CWORD": "2",
    }
    result = command_line.run(env=line, prog_name="skipdec")
    assert result.stdout.split() == ["--schedule"]
