"""Options of a command are the fields of its configuration and refuse with the same words."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
import typer
from pydantic import BeforeValidator, Field, Strict
from typer.testing import CliRunner

from skipdec.engines.checking import MemorySize, Option, ValidatedConfig, split_at_commas
from skipdec.engines.errors import UsageError
from skipdec.engines.host.application import Application
from skipdec.engines.host.options import Given, from_options


class Grid(ValidatedConfig):
    rows: Annotated[int, Option("--grid")]
    columns: Annotated[int | None, Option("--grid-columns")] = Field(default=None, ge=1)


class Config(ValidatedConfig):
    source: Annotated[Path, Option(metavar="SOURCE", is_argument=True)]
    output: Annotated[Path | None, Option("-o", metavar="DIR")] = Field(
        default=None, description="where it goes"
    )
    jobs: Annotated[int, Option("-j", panel="Running")] = Field(default=2, ge=1, le=8)
    verify: Annotated[bool, Option()] = True
    force: Annotated[bool, Option()] = False
    dtype: Annotated[Literal["float32", "float16"], Option()] = "float32"
    level: Annotated[Literal[0, 4], Option()] = 4
    memory: Annotated[MemorySize, Option("--kv-memory")] = 1 << 30
    limit: Annotated[int | None, Option(null="0")] = Field(default=16, ge=1)
    stop: Annotated[tuple[str, ...], Option()] = ()
    ids: Annotated[tuple[Annotated[int, Strict()], ...], Option("--id")] = ()
    sizes: Annotated[tuple[int, ...], BeforeValidator(split_at_commas), Option(repeated=False)] = (
        1,
    )
    grid: Annotated[Grid | None, Option(panel="Grid")] = None
    hidden: int = 3

    def _problems(self) -> Iterator[str]:
        if self.force and not self.verify:
            yield "`force` needs `verify`"


class Bare(ValidatedConfig):
    source: Annotated[str | None, Option(metavar="[SOURCE]", is_argument=True)] = None
    layer: Annotated[int | None, Option(bare="1")] = None


def run(*arguments: str) -> tuple[Any, Config | None]:
    built: list[Config] = []

    @from_options
    def command(config: Config) -> None:
        built.append(config)

    app = typer.Typer()
    app.command("make")(command)
    result = CliRunner().invoke(app, list(arguments), prog_name="make")
    return result, built[0] if built else None


def test_omitted_options_have_the_fields_default() -> None:
    _, config = run("here")
    assert config is not None
    assert config == Config(source=Path("here"))
    assert config.model_fields_set == {"source"}


class Choice(ValidatedConfig):
    target: Annotated[Literal["cpu", "gpu"], Option()] = Field(description="what runs it")


def test_a_choice_that_is_missing_is_refused_with_what_is_allowed() -> None:
    app = typer.Typer()

    @app.command("make")
    @from_options
    def command(config: Choice) -> None: ...

    result = CliRunner().invoke(app, [], prog_name="make")
    assert result.exit_code == 2
    assert "--target is missing; allowed: cpu, gpu" in result.stderr
    assert "(required)" in CliRunner().invoke(app, ["--help"]).stdout


def test_every_kind_of_option_reaches_its_field() -> None:
    switches = "here -o out -j 3 --no-verify --dtype float16 --level 0 --kv-memory 1.5GiB"
    others = "--limit 0 --stop a --stop b --id 3 --sizes 1,8 --grid 3 --grid-columns 4"
    result, config = run(*switches.split(), *others.split())
    assert result.exit_code == 0, result.output
    assert config == Config(
        source=Path("here"),
        output=Path("out"),
        jobs=3,
        verify=False,
        dtype="float16",
        level=0,
        memory=3 << 29,
        limit=None,
        stop=("a", "b"),
        ids=(3,),
        sizes=(1, 8),
        grid=Grid(rows=3, columns=4),
    )


@pytest.mark.parametrize(
    ("arguments", "values", "text"),
    [
        (["-j", "9"], {"jobs": 9}, "{jobs} is 9; allowed: 8 or less"),
        (["-j", "many"], {"jobs": "many"}, "{jobs} is 'many'; input should be a valid integer"),
        (["--dtype", "int8"], {"dtype": "int8"}, "{dtype} is 'int8'; allowed: 'float32' or"),
        (
            ["--kv-memory", "much"],
            {"memory": "much"},
            "{memory} is 'much', not a size; allowed: e.g.",
        ),
        (
            ["--sizes", "a"],
            {"sizes": "a"},
            "{sizes} is 'a'; allowed: comma-separated whole numbers",
        ),
        (["--force", "--no-verify"], {"force": True, "verify": False}, "{force} needs {verify}"),
        (
            ["--grid", "1", "--grid-columns", "0"],
            {"grid": {"rows": 1, "columns": 0}},
            "{grid.columns} is 0; allowed: 1 or more",
        ),
    ],
)
def test_both_callers_are_refused_in_the_same_words(
    arguments: list[str], values: dict[str, object], text: str
) -> None:
    result, _ = run("here", *arguments)
    assert result.exit_code == 2
    with pytest.raises(UsageError) as caught:
        Config(source=Path("here"), **values)
    plain = text.replace("{", "").replace("}", "")
    assert plain in str(caught.value)
    flags = {"memory": "--kv-memory", "grid.columns": "--grid-columns"}
    for field in ("jobs", "dtype", "memory", "sizes", "force", "verify", "grid.columns"):
        text = text.replace(f"{{{field}}}", flags.get(field, f"--{field}"))
    assert f"error: make | {text}" in result.stderr


def test_all_problems_come_at_once_under_the_options_names() -> None:
    result, _ = run("here", "-j", "0", "--force", "--no-verify", "--grid-columns", "3")
    for problem in ("--jobs is 0", "--force needs --verify", "--grid-columns needs --grid"):
        assert problem in result.stderr


def test_help_shows_choices_ranges_defaults_and_panels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    lines = run("--help")[0].stdout.splitlines()

    def line(option: str) -> str:
        return next(text for text in lines if f"{option} " in text)

    assert "where it goes" in line("--output")
    assert "-o" in line("--output")
    assert "<float32|float16>" in line("--dtype")
    assert "[1<=x<=8]" in line("--jobs")
    assert "default: 1.0GiB" in line("--kv-memory")
    assert "--no-verify" in line("--verify")
    assert "--no-force" not in line("--force")
    assert {"Running", "Grid"} <= {word for text in lines if "─" in text for word in text.split()}
    assert not any("--hidden" in text for text in lines)


def test_a_command_may_add_fields_before_it_builds() -> None:
    built: list[Config] = []

    @from_options
    def command(given: Given[Config]) -> None:
        built.append(given.build(hidden=len(given.values)))

    app = typer.Typer()
    app.command()(command)
    assert CliRunner().invoke(app, ["here", "--force"]).exit_code == 0
    assert built == [Config(source=Path("here"), force=True, hidden=2)]


@pytest.mark.parametrize(
    ("arguments", "source", "layer"),
    [
        (("--layer",), None, 1),
        (("--layer", "model"), "model", 1),
        (("model", "--layer", "2"), "model", 2),
        (("--layer=3", "model"), "model", 3),
        (("model",), "model", None),
        (("--layer", "2", "--", "--layer"), "--layer", 2),
    ],
)
def test_an_option_may_stand_without_its_number(
    arguments: tuple[str, ...], source: str | None, layer: int | None
) -> None:
    built: list[Bare] = []

    @from_options
    def command(config: Bare) -> None:
        built.append(config)

    app = Application()
    app.command("make")(command)
    result = CliRunner().invoke(app, list(arguments), prog_name="make")
    assert result.exit_code == 0, result.output
    assert (built[0].source, built[0].layer) == (source, layer)
