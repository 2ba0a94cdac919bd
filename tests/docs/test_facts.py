"""Facts on the pages about schedules, commands, exit codes and figures match the code."""

from __future__ import annotations

import doctest
import json
import re
import tomllib

import pytest
from benchmarks.cpu.restaurants import FIGURES, PICTURE, digest, table
from page_blocks import PAGES, ROOT, blocks
from pages.reference import all_errors, commands_page, manifest_page, python_page
from typer.main import get_command

from skipdec.cli import build_app
from skipdec.engines import constants
from skipdec.runtime.commands.results import result_line
from skipdec.runtime.schedule.decays import DECAYS
from skipdec.runtime.schedule.placements import PLACEMENTS
from skipdec.runtime.schedule.text import parse_schedule
from skipdec.runtime.tokens.outputs import CompletionOutput, RequestOutput


def page(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


SCHEDULES = page("docs/concepts/schedules.md")
PICTURES = re.findall(r"<!-- schedule: (\S+) -->\n```text\n(.*?)\n```", SCHEDULES, re.DOTALL)


@pytest.mark.parametrize(("text", "picture"), PICTURES)
def test_a_schedule_runs_the_layers_shown_in_its_picture(text: str, picture: str) -> None:
    schedule = parse_schedule(text, num_layers=12)
    columns = [schedule.plan(index).layers for index in range(24)]
    rows = [
        f"layer {layer:2d}  " + "".join("█" if layer in layers else "·" for layers in columns)
        for layer in reversed(range(12))
    ]
    assert picture.splitlines() == rows


def test_the_readme_shows_the_first_picture() -> None:
    drawn = blocks("README.md", "", "How it works")[0].splitlines()
    assert [row.split("   ")[0] for row in drawn] == PICTURES[0][1].splitlines()


def test_the_table_of_texts_has_every_decay_and_placement() -> None:
    table_of_texts = SCHEDULES.split("\n## Texts\n")[1].split("\n## ")[0]
    for name in DECAYS:
        assert f"{name}:" in table_of_texts
    for name in set(PLACEMENTS) - {"top"}:
        assert f"placement={name}" in table_of_texts


def test_texts_in_the_table_are_valid_schedules() -> None:
    cells = re.findall(r"^\| (`.*?) \|", SCHEDULES, re.MULTILINE)
    texts = [text for cell in cells for text in re.findall("`(.+?)`", cell) if "…" not in text]
    assert len(texts) > 5
    for text in set(texts) - {"schedule.json"}:
        parse_schedule(text, num_layers=24, horizon=64)


def test_the_readme_names_every_command() -> None:
    named = set(re.findall(r"`(?:skipdec )?(\w+)`", page("README.md").split("\n## Commands\n")[1]))
    assert named >= set(get_command(build_app()).commands)  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["README.md", "docs/benchmarks.md"])
def test_the_table_of_one_model_equals_the_recorded_figures(name: str) -> None:
    assert table(json.loads(FIGURES.read_text(encoding="utf-8"))) in page(name)


def test_the_picture_of_one_model_shows_the_recorded_figures() -> None:
    assert digest(json.loads(FIGURES.read_text(encoding="utf-8"))) in PICTURE.read_text()


def test_exit_codes_of_errors_equal_those_on_the_page() -> None:
    rows = re.findall(r"^\| (\d+) \|.*\| (.*) \|$", page("docs/guides/errors.md"), re.MULTILINE)
    codes = {int(code): set(re.findall(r"`(\w+)`", names)) for code, names in rows}
    errors = {error.__name__: error.exit_code for error in all_errors()}
    assert set(errors.values()) <= set(codes)
    assert all(errors[name] == code for code, names in codes.items() for name in names)


@pytest.mark.parametrize("name", ["docs/bundle.md", "docs/bundle-format.md"])
def test_pages_about_bundles_name_the_current_version(name: str) -> None:
    stated = r"(?:specifies version|format, version|current version is|`format_version` \|) (\d+)"
    versions = {int(number) for number in re.findall(stated, page(name))}
    assert versions == {constants.integer("format_version")}


def test_files_named_by_the_architecture_exist() -> None:
    tracked = {path.relative_to(ROOT).as_posix() for path in ROOT.glob("[a-z]*/**/*.py")}
    tracked |= {path.name for path in ROOT.glob("*.py")}
    named = set(re.findall(r"[\w/]+\.py", page("docs/architecture.md")))
    found = {name for name in named if any(f"/{path}".endswith(f"/{name}") for path in tracked)}
    assert found == named


def test_examples_of_errors_are_true() -> None:
    (example,) = blocks("docs/guides/errors.md", "pycon")
    test = doctest.DocTestParser().get_doctest(example, {}, "errors.md", None, 0)
    assert doctest.DocTestRunner().run(test).failed == 0


def test_output_lines_have_exactly_the_documented_keys() -> None:
    _, line = blocks("docs/guides/generate.md", "json")[0].splitlines()
    output = CompletionOutput(0, "text", (84,), finish_reason="length", layers_per_token=(12,))
    request = RequestOutput("0", "a", (5,), (output,), finished=True)
    assert list(json.loads(line)) == list(result_line("a1", request))


def test_generated_pages_name_existing_objects() -> None:
    assert "## `skipdec schedule set`" in commands_page()
    assert "--quantize" in commands_page()
    assert "::: skipdec.Generator" in python_page()
    assert "| `digest` | string |" in manifest_page()


def test_the_citation_has_the_package_version() -> None:
    project = tomllib.loads(page("pyproject.toml"))["project"]
    assert f"version: {project['version']}\n" in page("CITATION.cff")


def test_each_command_on_the_pages_has_its_own_line() -> None:
    joined = re.compile(r"^skipdec [^|;&$`]* skipdec [a-z]", re.MULTILINE)
    assert [name for name in PAGES if any(map(joined.search, blocks(name, "sh")))] == []


def test_no_page_installs_skipdec_from_an_index() -> None:
    installing = re.compile(r"pip install (-\S+ )?['\"]?skipdec")
    assert [name for name in PAGES if installing.search(page(name))] == []
