"""Write docs/reference, which Git ignores: pages generated from the code. See site.sh.

Commands come from typer, Python's names from the exports of ``skipdec`` (filled in by
mkdocstrings), the manifest's fields from its JSON Schema, exit codes from the errors.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from typer.cli import get_docs_for_click
from typer.main import get_command

import skipdec
from skipdec.cli import build_app
from skipdec.engines.errors import SkipDecError
from skipdec.engines.host.options import CONFIGURATIONS

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
REFERENCE = DOCS / "reference"
FLOORS = {  # origin of a public name → its heading
    "runtime": "Generate",
    "engines": "Bundles, errors, progress",
    "exporter": "Make a bundle",
    "calib": "Make a model ready to skip",
}


def write_reference() -> None:
    """Write every page of docs/reference."""
    REFERENCE.mkdir(exist_ok=True)
    pages = {
        "commands.md": commands_page(),
        "python.md": python_page(),
        "manifest.md": manifest_page(),
        "exit-codes.md": exit_codes_page(),
    }
    for name, text in pages.items():
        (REFERENCE / name).write_text(text, encoding="utf-8")


def commands_page() -> str:
    """Return all commands with options, as typer describes them, and examples."""
    application: Any = get_command(build_app())
    context = application.context_class(application, info_name="skipdec")
    sections = []
    for name in application.list_commands(context):
        _, command, _ = application.resolve_command(context, [name])
        text = get_docs_for_click(obj=command, ctx=context, name=name, call_prefix="skipdec")
        sections.append(re.sub(r"^#", "##", _examples(text), flags=re.MULTILINE))
        if fields := file_fields(command):
            sections.append("**Only in the file of `--config`**:\n\n" + "\n".join(fields) + "\n")
    return (
        "# Commands\n\nEach prints the same with `--help`. Results go to stdout, everything else "
        "to stderr; `--json` prints for programs. Defaults are in brackets, in parentheses if "
        "they depend on something.\n\n" + "\n".join(sections)
    )


def file_fields(command: Any) -> list[str]:  # noqa: ANN401  (typer's own type of commands)
    """Return a line for each field of a command's configurations that has no option."""
    configurations = getattr(command.callback, CONFIGURATIONS, ())
    return [
        f"* `{field.key}`: {field.info.description or ''} [default: {field.info.default!r}]"
        for configuration in configurations
        for field in configuration.all_fields()
        if not field.has_flag
    ]


def _examples(text: str) -> str:
    """Convert a command's epilog to Markdown, blocks of command lines to blocks of code."""
    text = text.replace("][", r"]\[")  # MODEL[-fp16][-int8] is not a link
    return re.sub(r"^\x08\n((?:.+\n?)+)", "```sh\n\\1```\n", text, flags=re.MULTILINE)


def python_page() -> str:
    """Return a heading for each package; mkdocstrings expands the line of each public name."""
    package = ast.parse((ROOT / "src/skipdec/__init__.py").read_text(encoding="utf-8"))
    names: dict[str, list[str]] = {floor: [] for floor in FLOORS}
    for statement in ast.walk(package):
        if isinstance(statement, ast.ImportFrom) and statement.level == 1 and statement.module:
            floor = statement.module.split(".")[0]
            names[floor] += [alias.name for alias in statement.names if alias.name in dir(skipdec)]
    sections = [
        f"## {FLOORS[floor]}\n\n"
        + "\n\n".join(f"::: skipdec.{name}" for name in sorted(floor_names))
        for floor, floor_names in names.items()
    ]
    introduction = (
        "Everything that the commands do, imported from `skipdec`. Configurations are frozen, "
        "refuse unknown arguments and check their values on creation."
    )
    return "\n\n".join(["# Python", introduction, *sections]) + "\n"


def manifest_page() -> str:
    """Return a table of fields for each object of ``manifest.json``."""
    schema = json.loads((DOCS / "manifest.schema.json").read_text(encoding="utf-8"))
    objects = {"Manifest": schema, **schema["$defs"]}
    sections = []
    for title, definition in objects.items():
        rows = _fields(definition) if "properties" in definition else _values(definition)
        sections.append(f"## {title}\n\n{definition.get('description', '')}\n\n" + "\n".join(rows))
    introduction = "The fields of `manifest.json`, from its [JSON Schema](../manifest.schema.json)."
    return "\n\n".join(["# Manifest", introduction, *sections]) + "\n"


def _fields(definition: Mapping[str, Any]) -> Iterator[str]:
    yield "| field | type | default | meaning |\n|---|---|---|---|"
    for name, field in definition["properties"].items():
        default = json.dumps(field["default"]) if "default" in field else "required"
        meaning = field.get("description", "").replace("|", "\\|")
        yield f"| `{name}` | {_type(field)} | {default} | {meaning} |"


def _values(definition: Mapping[str, Any]) -> Iterator[str]:
    yield "One of " + ", ".join(f"`{value}`" for value in definition["enum"]) + "."


def _type(field: Mapping[str, Any]) -> str:
    """Describe a schema's type: ``string``, ``list of FileRecord``, ``integer or null``."""
    if "anyOf" in field:
        return " or ".join(_type(choice) for choice in field["anyOf"])
    if "$ref" in field:
        name = field["$ref"].rsplit("/", 1)[1]
        return f"[{name}](#{name.lower()})"
    if "enum" in field:
        return " or ".join(f"`{value}`" for value in field["enum"])
    if field.get("type") == "array":
        return f"list of {_type(field['items'])}" if "items" in field else "list"
    if isinstance(values := field.get("additionalProperties"), dict):
        return f"object of {_type(values)}"
    return str(field.get("type", "any"))


def exit_codes_page() -> str:
    """Return every error that skipdec raises on purpose, with the command's exit code."""
    rows = [
        f"| `{error.__name__}` | {error.exit_code} | {(error.__doc__ or '').split(chr(10))[0]} |"
        for error in all_errors()
    ]
    return (
        "# Errors and exit codes\n\nA successful command exits with 0, an "
        "interrupted one with 130.\n\n| error | exit code | raised where |\n|---|---|---|\n"
        + "\n".join(rows)
        + "\n"
    )


def all_errors(error: type[SkipDecError] = SkipDecError) -> Iterator[type[SkipDecError]]:
    """Return ``error`` and all its subclasses in skipdec."""
    yield error
    for derived in error.__subclasses__():
        if derived.__module__.startswith("skipdec."):
            yield from all_errors(derived)


if __name__ == "__main__":
    write_reference()
