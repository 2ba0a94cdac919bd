"""Command-line options built from the fields of a configuration that have an `Option`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, TypeVar, get_args, get_origin, get_type_hints

import typer
from pydantic import ByteSize
from pydantic.fields import FieldInfo

from ..checking import Option, ValidatedConfig
from ..errors import ConfigurationError, UsageError
from .application import BARE_VALUES
from .console import reports_errors

C = TypeVar("C", bound=ValidatedConfig)

_KEYWORD = inspect.Parameter.KEYWORD_ONLY

AsJson = Annotated[bool, typer.Option("--json", help="print JSON instead of tables")]
BundlePath = Annotated[Path, typer.Argument(metavar="BUNDLE", help="a bundle's directory")]
Quiet = Annotated[
    bool, typer.Option("-q", "--quiet", help="print only warnings and errors on stderr")
]


@dataclass(frozen=True)
class Given(Generic[C]):
    """The options given for a configuration, for a command that adds fields of its own."""

    config: type[C]
    command: str
    values: Mapping[str, Any]  # as typed; a nested configuration's are a mapping, too
    names: Mapping[str, str]  # from a field's path to its option
    problems: tuple[str, ...] = ()

    def build(self, **others: Any) -> C:  # noqa: ANN401  (checked by the configuration)
        """Build the configuration. Raises UsageError that names options instead of fields."""
        problems = self.problems
        try:
            config = self.config(**{**self.values, **others})
        except ConfigurationError as error:
            problems += error.named(self.command, self.names).problems
        if problems:
            raise UsageError(self.command, *problems)
        return config


def from_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of each parameter that is a configuration, or `Given` of one.

    >>> @from_options
    ... def export(config: ExportConfig, *, as_json: AsJson = False) -> None: ...

    Other parameters are typer's. The configuration receives values as typed, so its errors are the
    same as in Python. Errors become exit codes.
    """
    hints = get_type_hints(command, include_extras=True)
    parameters = [inspect.Parameter("context", _KEYWORD, annotation=typer.Context)]
    found: dict[str, tuple[type[ValidatedConfig], list[_Field]]] = {}
    for parameter in inspect.signature(command).parameters.values():
        kind = hints[parameter.name]
        settings = get_args(kind)[1:] if get_origin(kind) is Annotated else ()
        kind = get_args(kind)[0] if settings else kind
        if config := _configuration(get_args(kind)[0] if get_origin(kind) is Given else kind):
            only = next((entry.only for entry in settings if isinstance(entry, Option)), None)
            found[parameter.name] = config, list(_fields_of(config, only=only))
            parameters += [field.parameter() for field in found[parameter.name][1]]
        else:
            annotation = hints[parameter.name]
            parameters.append(parameter.replace(annotation=annotation, kind=_KEYWORD))

    @wraps(command)
    def run(*, context: typer.Context, **values: Any) -> None:  # noqa: ANN401  (typer's)
        for name, (config, fields) in found.items():
            typed = {field: values.pop(field.parameter_name) for field in fields}
            given = _given(config, typed, context)
            values[name] = given if get_origin(hints[name]) is Given else given.build()
        command(**values)

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {}
    reporting = reports_errors(run)
    bare = {
        flag: field.option.bare
        for _, fields in found.values()
        for field in fields
        if field.option.bare is not None
        for flag in field.flags
    }
    setattr(reporting, BARE_VALUES, bare)
    return reporting


@dataclass(frozen=True, eq=False)  # hashable by identity
class _Field:
    """One field of a configuration, or of a nested one, as an option."""

    path: tuple[str, ...]
    info: FieldInfo
    option: Option
    is_required: bool

    @property
    def parameter_name(self) -> str:
        return "_".join(self.path)

    @property
    def is_repeated(self) -> bool:
        return self.option.repeated and get_origin(_without_none(self.info.annotation)) is tuple

    @property
    def is_choice(self) -> bool:
        return get_origin(_without_none(self.info.annotation)) is Literal

    @property
    def flags(self) -> list[str]:
        """Return the names for typer, e.g. ``-o``, ``--output`` or ``--resume/--no-resume``."""
        flag, name = self.option.flag, self.path[-1].replace("_", "-")
        if "--" in flag:
            return [flag] if flag.startswith(" ") else flag.split()
        long = f"--{name}/--no-{name}" if self.info.default is True else f"--{name}"
        return [flag, long] if flag else [long]

    @property
    def name(self) -> str:
        """Return the name used in messages."""
        if self.option.is_argument:
            return (self.option.metavar or self.path[-1]).strip("[]")
        own = self.flags[0 if "--" in self.option.flag else -1]
        return own.strip(" /").partition("/")[0]

    def parameter(self) -> inspect.Parameter:
        """Return the option or argument as a parameter for typer."""
        kind = _without_none(self.info.annotation)
        if self.is_repeated:
            kind = get_args(kind)[0]  # type of each entry, without its bounds
            kind = get_args(kind)[0] if get_origin(kind) is Annotated else kind
        shown: Any
        shown, settings = _shown_as(kind)
        settings |= {
            "help": self.option.help or self.info.description,
            "rich_help_panel": self.option.panel,
            "show_default": self.option.show_default,
        }
        if self.option.metavar is not None:
            settings["metavar"] = self.option.metavar
        if kind in (int, float) and self.option.null is None:
            settings |= self._bounds()
        if self.is_required and self.is_choice:
            settings["help"] += " (required)"
        default = None if self.info.is_required() else self.info.default
        if self.is_repeated:
            shown, default = list[shown], list(default or ()) or None
        elif isinstance(default, tuple):
            default = ",".join(map(str, default))
        elif kind is ByteSize and default is not None:
            default = ByteSize(default).human_readable()
        declared = (
            typer.Argument(**settings)
            if self.option.is_argument
            else typer.Option(*self.flags, **settings)
        )
        return inspect.Parameter(
            self.parameter_name,
            _KEYWORD,
            # The configuration's error for a missing choice lists the values; typer's doesn't.
            default=inspect.Parameter.empty if self.is_required and not self.is_choice else default,
            annotation=Annotated[shown, declared],
        )

    def _bounds(self) -> dict[str, float]:
        """Return the range that help shows; the configuration checks it."""
        found = {"min": "ge", "max": "le"}
        return {
            name: getattr(bound, attribute)
            for bound in self.info.metadata
            for name, attribute in found.items()
            if hasattr(bound, attribute)
        }


def _fields_of(
    config: type[ValidatedConfig],
    path: tuple[str, ...] = (),
    panel: str | None = None,
    *,
    is_required: bool = True,
    only: tuple[str, ...] | None = None,
) -> Iterator[_Field]:
    """Yield the options of a configuration and of nested ones, or ``only`` the named fields."""
    for name, info in config.model_fields.items():
        if only is not None and name not in only:
            continue
        for option in (entry for entry in info.metadata if isinstance(entry, Option)):
            place, needed = (*path, name), is_required and info.is_required()
            shown = replace(option, panel=option.panel or panel)
            inner = _configuration(info.annotation)
            if inner and not option.metavar:
                yield from _fields_of(
                    inner, place, shown.panel, is_required=needed, only=option.only
                )
            else:
                yield _Field(place, info, shown, needed)


def _given(config: type[C], typed: Mapping[_Field, Any], context: typer.Context) -> Given[C]:
    """Return the command line's values in the form ``config`` takes, and what is missing."""
    values: dict[str, Any] = {}
    given = [
        field
        for field in typed
        if (source := context.get_parameter_source(field.parameter_name)) is not None
        and source.name != "DEFAULT"
    ]
    for field in given:
        place = values
        for name in field.path[:-1]:
            place = place.setdefault(name, {})
        place[field.path[-1]] = None if str(typed[field]) == field.option.null else typed[field]
    problems = []
    for field in [field for field in typed if field not in given and field.info.is_required()]:
        inside = [other.name for other in given if other.path[:-1] == field.path[:-1] != ()]
        if inside:
            problems.append(f"{', '.join(inside)} needs {field.name}")
            del values[field.path[0]]
    names = {".".join(field.path): field.name for field in typed}
    return Given(config, str(context.info_name), values, names, tuple(problems))


def _without_none(annotation: Any) -> Any:  # noqa: ANN401  (any annotation)
    kinds = [kind for kind in get_args(annotation) if kind is not type(None)]
    return kinds[0] if len(kinds) == 1 and type(None) in get_args(annotation) else annotation


def _configuration(annotation: Any) -> type[ValidatedConfig] | None:  # noqa: ANN401
    """Return the configuration class that an annotation names, if any."""
    kind = _without_none(annotation)
    is_one = inspect.isclass(kind) and issubclass(kind, ValidatedConfig)
    return kind if is_one else None


def _shown_as(kind: Any) -> tuple[Any, dict[str, Any]]:  # noqa: ANN401  (any annotation)
    """Return the type that typer shows for a field's type, and further settings."""
    if kind in (int, float):
        return kind, {"parser": _number_or_text(kind), "metavar": "N" if kind is int else "X"}
    if get_origin(kind) is Literal:
        values = get_args(kind)
        choices = [str(value) for value in values]
        return str, {
            "parser": _number_or_text(type(values[0])),
            "metavar": f"<{'|'.join(choices)}>",
            "autocompletion": lambda: choices,
        }
    if kind is Path:
        return str, {"metavar": "PATH"}
    if kind is ByteSize:
        return str, {"metavar": "SIZE"}
    return (bool, {}) if kind is bool else (str, {"metavar": "TEXT"})


def _number_or_text(kind: type) -> Callable[[str], Any]:
    """Return a parser that leaves invalid numbers as text, for the configuration to reject."""

    def read(text: str) -> Any:  # noqa: ANN401
        try:
            return kind(text)
        except ValueError:
            return text

    return read
