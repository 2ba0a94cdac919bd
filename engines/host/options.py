"""Command-line options built from the fields of a configuration, and a file with the same fields.

A field with an `Option` has a flag. The file of ``--config`` may set any field; flags override it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import typer
from pydantic import ByteSize
from pydantic.fields import FieldInfo

from ..checking import Option, ValidatedConfig
from ..errors import ConfigurationError, UsageError, did_you_mean
from .console import reports_errors
from .option_files import OptionFile, merged

_KEYWORD = inspect.Parameter.KEYWORD_ONLY
CONFIGURATIONS = "configurations"  # attribute of a command's function, for the reference
_FILE = "skipdec.option_file"  # key of the file that --config read, in a context's meta

AsJson = Annotated[bool, typer.Option("--json", help="print JSON instead of tables")]
BundlePath = Annotated[Path, typer.Argument(metavar="BUNDLE", help="a bundle's directory")]
Quiet = Annotated[
    bool, typer.Option("-q", "--quiet", help="print only warnings and errors on stderr")
]


def from_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command ``--config`` and the options of each parameter that is a configuration.

    >>> @from_options
    ... def export(config: ExportConfig, *, as_json: AsJson = False) -> None: ...

    Other parameters are typer's. The configuration receives values as typed, so its errors are the
    same as in Python. Errors become exit codes.
    """
    hints = get_type_hints(command, include_extras=True)
    parameters = [inspect.Parameter("context", _KEYWORD, annotation=typer.Context)]
    found: dict[str, _Configuration] = {}
    for parameter in inspect.signature(command).parameters.values():
        annotation = hints[parameter.name]
        if configuration := _Configuration.of(annotation):
            found[parameter.name] = configuration
            parameters += [field.parameter() for field in configuration.fields]
        else:
            parameters.append(parameter.replace(annotation=annotation, kind=_KEYWORD))
    if found:
        parameters.append(_file_parameter(list(found.values())))

    @wraps(command)
    def run(*, context: typer.Context, **values: Any) -> None:  # noqa: ANN401  (typer's)
        values.pop("option_file", None)
        file: OptionFile = context.meta.get(_FILE, OptionFile())
        left = dict(file.values)
        for name, configuration in found.items():
            typed = {field: values.pop(field.parameter_name) for field in configuration.fields}
            own = {key: left.pop(key) for key in configuration.keys if key in left}
            values[name] = configuration.build(context, typed, OptionFile(file.path, own))
        command(**values)

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {}
    reporting = reports_errors(run)
    setattr(reporting, CONFIGURATIONS, tuple(found.values()))
    return reporting


def _file_parameter(configurations: list[_Configuration]) -> inspect.Parameter:
    """Return ``--config``, whose file may supply what the command line lacks."""

    def read(context: typer.Context, path: str | None) -> None:
        if path is None or context.resilient_parsing:
            return
        context.meta[_FILE] = file = OptionFile.read(path)
        if problems := list(_unknown(file.values, configurations)):
            raise UsageError(path, *problems)
        context.default_map = {
            field.parameter_name: [""] if field.is_repeated else ""
            for configuration in configurations
            for field in configuration.fields
            if field.is_required and field.is_in(file.values)
        }

    option = typer.Option(
        "--config",
        metavar="FILE",
        help="these options and more, in YAML or TOML",
        is_eager=True,
        callback=reports_errors(read),
    )
    kind = Annotated[str, option]
    return inspect.Parameter("option_file", _KEYWORD, default=None, annotation=kind)


def _unknown(
    values: Mapping[str, Any], configurations: list[_Configuration], prefix: str = ""
) -> Iterator[str]:
    """Yield a problem for each key of a file that is not a field of a configuration."""
    allowed = {name: inner for each in configurations for name, inner in each.keys.items()}
    for key, value in values.items():
        if key not in allowed:
            meant = _home(key, configurations)
            meant = meant or did_you_mean(key, allowed, among=len(values))
            yield f"{prefix}{key} is unknown; {meant}allowed: {', '.join(allowed)}"
        elif (inner := allowed[key]) and isinstance(value, Mapping):
            yield from _unknown(value, [inner], f"{prefix}{key}.")


def _home(key: str, configurations: list[_Configuration]) -> str:
    """Return "it belongs to …" for a field of a nested configuration, else ""."""
    for each in configurations:
        for field in each.all_fields():
            *home, name = field.path
            if home and name == key:
                return f"it belongs to {'.'.join(home)}, as in {home[-1]}: {{{key}: …}}; "
    return ""


@dataclass(frozen=True)
class _Configuration:
    """A configuration class as a command's options: ``only`` the named fields, or all."""

    kind: type[ValidatedConfig]
    only: tuple[str, ...] | None = None

    @classmethod
    def of(cls, annotation: Any) -> _Configuration | None:  # noqa: ANN401  (any annotation)
        """Return the configuration that a parameter's annotation names, if any."""
        settings: list[Any] = []
        if get_origin(annotation) is Annotated:
            annotation, *settings = get_args(annotation)
        kind = _without_none(annotation)
        if not (inspect.isclass(kind) and issubclass(kind, ValidatedConfig)):
            return None
        return cls(kind, next((each.only for each in settings if isinstance(each, Option)), None))

    @property
    def keys(self) -> dict[str, _Configuration | None]:
        """Return the names of the fields in a file, each with its own configuration, if any."""
        return {
            name: _Configuration.of(Annotated[info.annotation, None, *info.metadata])
            for name, info in self.kind.model_fields.items()
            if self.only is None or name in self.only
        }

    @property
    def fields(self) -> list[_Field]:
        """Return the fields that have a flag, those of nested configurations among them."""
        return [field for field in self.all_fields() if field.has_flag]

    def all_fields(
        self, path: tuple[str, ...] = (), *, has_flag: bool = True, is_required: bool = True
    ) -> Iterator[_Field]:
        """Yield the fields, and for a nested configuration those inside it."""
        for name, inner in self.keys.items():
            info = self.kind.model_fields[name]
            option = next((entry for entry in info.metadata if isinstance(entry, Option)), None)
            inner_path, flagged = (*path, name), has_flag and option is not None
            option, needed = option or Option(), is_required and info.is_required()
            if inner and not option.metavar:
                yield from inner.all_fields(inner_path, has_flag=flagged, is_required=needed)
            else:
                yield _Field(inner_path, info, option, needed, flagged)

    def build(
        self, context: typer.Context, typed: Mapping[_Field, Any], file: OptionFile
    ) -> ValidatedConfig:
        """Build the configuration of flags and file. Raises UsageError that names both."""
        given: dict[str, Any] = {}
        names = {
            field.key: f"{field.key} ({file.path or '--config'})" for field in self.all_fields()
        }
        for field, value in typed.items():
            source = context.get_parameter_source(field.parameter_name)
            is_typed = source is not None and source.name in ("COMMANDLINE", "ENVIRONMENT")
            if is_typed or not field.is_in(file.values):
                names[field.key] = field.name
            if is_typed:
                mapping = given
                for name in field.path[:-1]:
                    mapping = mapping.setdefault(name, {})
                mapping[field.path[-1]] = None if str(value) == field.option.null else value
        try:
            return self.kind(**merged(file.values, given))
        except ConfigurationError as error:
            raise error.named(str(context.info_name), names) from error


@dataclass(frozen=True, eq=False)  # hashable by identity
class _Field:
    """One field of a configuration, or of a nested one, as an option."""

    path: tuple[str, ...]
    info: FieldInfo
    option: Option
    is_required: bool
    has_flag: bool

    @property
    def key(self) -> str:
        """Return the name in a file, such as ``data.path``."""
        return ".".join(self.path)

    @property
    def parameter_name(self) -> str:
        return "_".join(self.path)

    def is_in(self, values: Mapping[str, Any]) -> bool:
        """Return True if a file's ``values`` have the field."""
        found: Any = values
        for name in self.path:
            if not isinstance(found, Mapping) or name not in found:
                return False
            found = found[name]
        return True

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


def _without_none(annotation: Any) -> Any:  # noqa: ANN401  (any annotation)
    kinds = [kind for kind in get_args(annotation) if kind is not type(None)]
    return kinds[0] if len(kinds) == 1 and type(None) in get_args(annotation) else annotation


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
