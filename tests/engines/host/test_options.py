"""The options of a command are its configuration's fields and have the same errors."""

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
from skipdec.engines.host.options import from_options


class Grid(ValidatedConfig):
    rows: Annotated[int, Option("--grid")]
    columns: Annotated[int | None, Option("--grid-columns")] = Field(default=None, ge=1)


class Config(ValidatedConfig):
    source: Annotated[Path, Option(metavar="SOURCE", is_argument=True)]
    output: Annotated[Path | None, Option("-o", metavar="DIR")] = Field(
        default=None, description="where it goes"
    )
    jobs: Annotated[int, Option("-j")] = Field(default=2, ge=1, le=8)
    verify: Annotated[bool, Option()] = True
    force: Annotated[bool, Option()] = False
    dtype: Annotated[Literal["float32", "float16"], Option()] = "float32"
    level: Annotated[Literal[0, 4], Option()] = 4
    memory: Annotated[MemorySize, Option("--kv-memory")] = 1 << 30
    stop: Annotated[tuple[str, ...], Option()] = ()
    ids: Annotated[tuple[Annotated[int, Strict()], ...], Option("--id")] = ()
    sizes: Annotated[tuple[int, ...], BeforeValidator(split_at_commas), Option(repeated=False)] = (
        1,
    )
    grid: Annotated[Grid | None, Option()] = None
    hidden: int = 3

    def _problems(self) -> Iterator[str]:
        if self.force and not self.verify:
            yield "`force` needs `verify`"


def run(*arguments: str) -> tuple[Any, Config | None]:
    built: list[Config] = []

    @from_options
    def command(config: Config) -> None:
        built.append(config)

    app = typer.Typer(rich_markup_mode=None)
    app.command("make")(command)
    result = CliRunner().invoke(app, list(arguments), prog_name="make")
    return result, built[0] if built else None


def test_omitted_options_have_the_default_of_the_field() -> None:
    _, config = run("here")
    assert config is not None
    assert config == Config(source=Path("here"))
    assert config.model_fields_set == {"source"}


class Choice(ValidatedConfig):
    target: Annotated[Literal["cpu", "gpu"], Option()] = Field(description="what runs it")


def test_a_missing_choice_is_refused_with_the_allowed_values() -> None:
    app = typer.Typer(rich_markup_mode=None)

    @app.command("make")
    @from_options
    def command(config: Choice) -> None: ...

    result = CliRunner().invoke(app, [], prog_name="make")
    assert result.exit_code == 2
    assert "--target is missing; allowed: cpu, gpu" in result.stderr
    assert "(required)" in CliRunner().invoke(app, ["--help"]).stdout


def test_every_kind_of_option_reaches_its_field() -> None:
    switches = "here -o out -j 3 --no-verify --dtype float16 --level 0 --kv-memory 1.5GiB"
    others = "--stop a --stop b --id 3 --sizes 1,8 --grid 3 --grid-columns 4"
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
        stop=("a", "b"),
        ids=(3,),
        sizes=(1, 8),
        grid=Grid(rows=3, columns=4),
    )


@pytest.mark.parametrize(
    ("arguments", "values", "text"),
    [
        (["-j", "9"], {"jobs": 9}, "{jobs} is 9; allowed: 8 or less"),
        (["-j", "many"], {"jobs": "many"}, "{jobs} is 'many'; allowed: an integer"),
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
def test_python_and_the_command_get_the_same_error(
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


def test_all_problems_are_reported_together_by_option_name() -> None:
    result, _ = run("here", "-j", "0", "--force", "--no-verify", "--grid-columns", "3")
    for problem in ("--jobs is 0", "--force needs --verify", "--grid is missing; give it"):
        assert problem in result.stderr


def test_help_shows_choices_ranges_and_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    lines = run("--help")[0].stdout.splitlines()

    def line(option: str) -> str:
        return " ".join(text for text in lines if f"{option}" in text)

    assert "where it goes" in line("--output")
    assert "-o" in line("--output")
    assert "<float32|float16>" in line("--dtype")
    assert "1<=x<=8]" in line("--jobs")
    assert "default: 1.0GiB" in line("--kv-memory")
    assert "--no-verify" in line("--verify")
    assert "--no-force" not in line("--force")
    assert not any("--hidden" in text for text in lines)


def write_options(tmp_path: Path, text: str, name: str = "options.yaml") -> str:
    path = tmp_path / name
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("options.yaml", "{source: here, jobs: 3, hidden: 7, stop: [a, b], grid: {rows: 3}}"),
        ("o.yaml", "{source: here, jobs: 3, hidden: 7, stop: [a, b], grid: {<<: {rows: 3}}}"),
        (
            "options.toml",
            '\ufeffsource = "here"\njobs = 3\nhidden = 7\nstop = ["a", "b"]\n[grid]\nrows = 3\n',
        ),
    ],
)
def test_a_file_may_set_all_fields_and_options_override_it(
    tmp_path: Path, name: str, text: str
) -> None:
    file = write_options(tmp_path, text, name)
    _, config = run("--config", file, "-j", "4", "--grid-columns", "2")
    grid = Grid(rows=3, columns=2)
    assert config == Config(source=Path("here"), jobs=4, hidden=7, stop=("a", "b"), grid=grid)
    _, config = run("there", "--config", file, "--grid", "5")
    assert config is not None
    assert (config.source, config.jobs, config.grid) == (Path("there"), 3, Grid(rows=5))


@pytest.mark.parametrize(
    ("text", "name", "problem"),
    [
        ("jbos: 3", "a.yaml", "{file} | jbos is unknown; did you mean 'jobs'? allowed: source,"),
        ("grid: {row: 3}", "a.yaml", "{file} | grid.row is unknown; did you mean 'rows'? allowed:"),
        (
            "rows: 3",
            "a.yaml",
            "{file} | rows is unknown; it belongs to grid, as in grid: {{rows: …}};",
        ),
        ("stop: now", "a.yaml", "make | stop ({file}) is 'now'; allowed: a list, e.g. ['now']"),
        ("1: 3", "a.yaml", "{file} | 1 is unknown; allowed: source,"),
        ("jobs: 9", "a.yaml", "make | jobs ({file}) is 9; allowed: 8 or less"),
        ("hidden: x", "a.yaml", "make | hidden ({file}) is 'x'; allowed: an integer"),
        ("grid: {rows: 1, columns: 0}", "a.yaml", "make | grid.columns ({file}) is 0; allowed: 1"),
        ("grid: {columns: 1}", "a.yaml", "make | --grid is missing; give it"),
        ("force: true\nverify: false", "a.yaml", "make | force ({file}) needs verify ({file})"),
        ("- jobs", "a.yaml", "{file} | is a list; allowed: a mapping of fields to values"),
        ("[]", "a.yaml", "{file} | is a list; allowed: a mapping of fields to values"),
        ("jobs: !!bool x", "a.yaml", "{file} | is not YAML: a value does not fit its tag"),
        ("[" * 10_000, "a.yaml", "{file} | is nested too deeply"),
        ("jobs: [", "a.yml", "{file} | is not YAML: while parsing"),
        ("data: {a: 1, a: 2}", "a.yaml", "{file} | is not YAML: 'a' is given twice; leave one"),
        ("jobs: !!map [1]", "a.yaml", "{file} | is not YAML: expected a mapping node"),
        ("jobs: !!python/object:os.system {}", "a.yaml", "{file} | is not YAML: could not"),
        ("#" * (1 << 20) + "\n", "a.yml", "{file} | is larger than 1,048,576 bytes, the limit"),
        ("jobs = ", "a.toml", "{file} | is not TOML: Invalid value"),
        ("{}", "a.json", "{file} | ends in '.json'; allowed: .yaml, .yml, .toml"),
    ],
)
def test_errors_in_a_file_name_the_file_and_the_key(
    tmp_path: Path, text: str, name: str, problem: str
) -> None:
    file = write_options(tmp_path, text, name)
    result, _ = run("here", "--config", file)
    assert result.exit_code == 2
    assert f"error: {problem.format(file=file)}" in result.stderr


def test_a_missing_argument_is_refused(tmp_path: Path) -> None:
    assert "Missing argument" in run("--config", write_options(tmp_path, ""))[0].stderr


@pytest.mark.parametrize(
    ("name", "problem"),
    [("no.yaml", "No such file or directory"), ("folder.yaml", "is a directory")],
)
def test_a_missing_file_or_a_directory_is_refused(tmp_path: Path, name: str, problem: str) -> None:
    (tmp_path / "folder.yaml").mkdir()
    result, _ = run("here", "--config", str(tmp_path / name))
    assert result.exit_code == 2
    assert f"error: {tmp_path / name} | can't be read ({problem}" in result.stderr
