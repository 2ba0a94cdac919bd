"""Sandbox: a Jinja template of a checkpoint, rendered with limits on what it does and makes.

A chat template is a program that comes with a model. It runs without access to Python's objects
(`ImmutableSandboxedEnvironment`), and a runaway one ends in an error: every round of a loop and
every call of a macro is a step, every text that it makes is counted before it is made, and every
filter, call, operator and comparison looks at the clock, so that a template without a loop ends,
too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from functools import partial, wraps
from typing import Any

from jinja2 import TemplateError, TemplateSyntaxError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.filters import FILTERS
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Cycler, Joiner, Namespace
from jinja2.visitor import NodeTransformer
from typing_extensions import override

from ...engines.errors import UsageError
from .template_limits import (
    MAX_RANGE,
    LimitError,
    current_budget,
    fitting,
    is_long,
    limited,
    measured,
    require_bits,
    require_length,
    require_product,
    text_of,
)

_MAX_INDENT = 64

_STRING_METHODS = (
    *("capitalize", "casefold", "count", "endswith", "find", "format", "index"),
    *("isalnum", "isalpha", "isdecimal", "isdigit", "islower", "isnumeric", "isspace"),
    *("isupper", "join", "lower", "lstrip", "partition", "removeprefix", "removesuffix"),
    *("replace", "rfind", "rindex", "rpartition", "rsplit", "rstrip", "split"),
    *("splitlines", "startswith", "strip", "swapcase", "title", "upper"),
)
_FILTERS = (
    *("abs", "attr", "capitalize", "count", "d", "default", "dictsort", "e", "escape"),
    *("first", "float", "forceescape", "groupby", "int", "items", "last", "length"),
    *("list", "lower", "map", "max", "min", "reject", "rejectattr", "reverse", "round"),
    *("safe", "select", "selectattr", "sort", "striptags", "title", "trim", "truncate"),
    *("unique", "upper", "urlencode", "wordcount"),
)
_WIDE = re.compile(r"\d{5,}")  # a width in a format
_WIDE_PERCENT = re.compile(r"%[^%a-zA-Z]*(\*|\d{5,})")
_WIDE_BRACES = re.compile(r"\{[^{}]*:[^{}]*(\{|\d{5,})")


class Sandbox:
    """A compiled template; safe from all threads.

    ``now`` is the clock of the template's ``strftime_now``.
    """

    def __init__(self, source: str, *, now: Callable[[], datetime] = datetime.now) -> None:
        """Compile ``source``. Raises ValueError, in words, for one that is not a template."""
        environment = _Environment(now)
        try:
            self._template = environment.from_string(source)
        except TemplateSyntaxError as error:
            raise ValueError(f"line {error.lineno}: {error.message}") from error
        except (TemplateError, SyntaxError, RecursionError, OverflowError) as error:
            raise ValueError(str(error) or type(error).__name__) from error

    def render(self, variables: Mapping[str, Any]) -> str:
        """Return the text for ``variables``, which hold only what JSON has.

        Raises UsageError where the template refuses them by ``raise_exception``, where it does what
        is not allowed, or more than it may.
        """
        subject = "chat template"
        try:
            with limited():
                return "".join(self._template.generate(variables))
        except SecurityError as error:
            raise UsageError(subject, f"uses what templates may not ({error})") from error
        except _RefusedError as error:
            raise UsageError("messages", f"are refused by the chat template: {error}") from error
        except LimitError as error:
            raise UsageError(subject, f"{error}; use another one, or shorter messages") from error
        except (
            *(TemplateError, TypeError, ValueError, ArithmeticError, LookupError, AttributeError),
            *(RecursionError, MemoryError),
        ) as error:
            words = str(error) or type(error).__name__
            raise UsageError(subject, f"can't render these messages ({words:.300})") from error


class _RefusedError(TemplateError):
    """What a template raises by ``raise_exception``."""


class _Namespace(Namespace):
    """Jinja's namespace without names that begin with an underscore."""

    def __init__(*args: Any, **names: Any) -> None:  # noqa: ANN401  (a template may set self)
        for name in dict(*args[1:], **names):
            _require_public(name)
        Namespace.__init__(*args, **names)

    def __setitem__(self, name: str, value: Any) -> None:  # noqa: ANN401
        _require_public(name)
        super().__setitem__(name, value)


def _require_public(name: str) -> None:
    if str(name).startswith("_"):
        raise SecurityError(f"the name {name!r:.80} of a namespace")


class _Generation(Extension):
    """``{% generation %}``, with which templates mark what is trained; it shows its content."""

    tags = {"generation"}  # noqa: RUF012  (as Jinja declares it)

    @override
    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Metered(NodeTransformer):
    """Adds steps to bodies that may run often, counts concatenated texts and times comparisons."""

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802
        return self._stepped(node)

    def visit_Macro(self, node: nodes.Macro) -> nodes.Node:  # noqa: N802
        return self._stepped(node)

    def visit_CallBlock(self, node: nodes.CallBlock) -> nodes.Node:  # noqa: N802
        return self._stepped(node)

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _call("concatenated", list(node.nodes), node.lineno)

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _call("compared", [node], node.lineno)

    def _stepped(self, node: Any) -> nodes.Node:  # noqa: ANN401  (a node with a body)
        written = sum(
            len(text)
            for part in node.body
            for text in (*_texts(part, nodes.TemplateData), *_texts(part, nodes.Const))
        )
        self.generic_visit(node)
        step = _call("step", [nodes.Const(written, lineno=node.lineno)], node.lineno)
        node.body.insert(0, nodes.Output([step], lineno=node.lineno))
        return node  # type: ignore[no-any-return]


def _texts(node: nodes.Node, kind: type[nodes.TemplateData | nodes.Const]) -> Iterable[str]:
    """Return the texts that a node writes as they are in the source."""
    found = [*node.find_all(kind), *([node] if isinstance(node, kind) else [])]
    values = (getattr(each, "data", getattr(each, "value", None)) for each in found)
    return [value for value in values if isinstance(value, str)]


def _call(name: str, arguments: list[nodes.Expr], line: int) -> nodes.Call:
    function = nodes.EnvironmentAttribute(name, lineno=line)
    return nodes.Call(function, arguments, [], None, None, lineno=line)


class _Environment(ImmutableSandboxedEnvironment):
    """Jinja as transformers sets it up for chat templates, with limits."""

    intercepted_binops = frozenset(("+", "*", "**", "%"))

    def __init__(self, now: Callable[[], datetime]) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.loopcontrols", _Generation],
            finalize=_written,
        )
        filters = {name: FILTERS[name] for name in _FILTERS} | {
            "tojson": _to_json,
            "join": self._join,
            "replace": self._replace,
            "indent": _indent,
            "string": text_of,
            "sum": self._sum,
        }
        self.filters = {name: _metered(function) for name, function in filters.items()}
        self.globals = {
            "range": _range,
            "dict": lambda *args, **names: dict(*args, **names),
            "namespace": _Namespace,
            "cycler": Cycler,
            "joiner": Joiner,
            "raise_exception": _refuse,
            "strftime_now": partial(_strftime_now, now),
        }

    @staticmethod
    def step(characters: int) -> str:
        """Count a step and the characters that it writes as they are in the source."""
        current_budget().step(characters)
        return ""

    @staticmethod
    def compared(result: object) -> object:
        """Return the result of a comparison."""
        current_budget().look()
        return result

    @staticmethod
    def concatenated(*parts: object) -> str:
        """Return the text of ``a ~ b ~ c``."""
        return "".join(map(text_of, fitting(parts)))

    @override
    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = _Metered().visit(super()._parse(source, name, filename))
        tree.set_environment(self)
        return tree  # type: ignore[no-any-return]

    @override
    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if isinstance(obj, str) and attr not in _STRING_METHODS:
            return False
        return super().is_safe_attribute(obj, attr, value)

    @override
    def call(self, context: Context, function: Any, /, *args: Any, **names: Any) -> Any:
        current_budget().look()
        owner = getattr(function, "__self__", None)
        if isinstance(owner, str):
            match function.__name__:
                case "replace":
                    return self._replace(owner, *args, **names)
                case "join":
                    (values,) = args
                    return self._join(values, owner)
            result = super().call(context, function, *args, **names)
            current_budget().make(result)
            return result
        return super().call(context, function, *args, **names)

    @override
    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        wrapped = super().wrap_str_format(value)
        if wrapped is not None and _WIDE_BRACES.search(value.__self__):
            raise LimitError(f"formats to a width ({value.__self__!r:.80})")
        return wrapped

    @override
    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        current_budget().look()
        match operator:
            case "*":
                require_product(left, right)
            case "**":
                require_bits(int(left).bit_length() * max(1, abs(right)))
            case "+" if is_long(left) and is_long(right):
                require_length(len(left) + len(right))
            case "%" if isinstance(left, str):
                if _WIDE_PERCENT.search(left):
                    raise LimitError(f"formats to a width ({left!r:.80})")
                require_length(len(left) + measured(right))
        return super().call_binop(context, operator, left, right)

    def _join(self, values: Any, d: str = "", attribute: str | int | None = None) -> str:  # noqa: ANN401
        if attribute is not None:
            values = (self.getitem(value, attribute) for value in values)
        texts = list(map(text_of, fitting(values)))
        require_length(sum(map(len, texts)) + len(texts) * len(d))
        return d.join(texts)

    def _replace(self, text: Any, old: str, new: str, count: int | None = None) -> str:  # noqa: ANN401
        text = text_of(text)
        require_length(len(text) + text.count(old) * max(0, len(new) - len(old)))
        return str(text.replace(old, new, -1 if count is None else count))

    def _sum(self, values: Any, attribute: str | int | None = None, start: Any = 0) -> Any:  # noqa: ANN401
        total = start
        for value in fitting(values):
            current_budget().step(0)
            item = value if attribute is None else self.getitem(value, attribute)
            if is_long(total) and is_long(item):
                require_length(len(total) + len(item))
            total = total + item
        return total


def _metered(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a filter that looks at the clock, and refuses long lists and too much text."""

    @wraps(function)
    def metered(*args: Any, **names: Any) -> Any:  # noqa: ANN401
        budget = current_budget()
        budget.look()
        for value in args:
            if isinstance(value, list | tuple | dict) and len(value) > MAX_RANGE:
                raise LimitError(f"filters {len(value):,} items; allowed: {MAX_RANGE:,}")
        result = function(*args, **names)
        budget.make(result)
        return result

    return metered


def _written(value: object) -> object:
    """Count a value that is written."""
    if isinstance(value, str):
        current_budget().write(len(value))
    elif isinstance(value, list | tuple | dict):
        current_budget().write(measured(value))
    return value


def _range(*arguments: int) -> range:
    numbers = range(*arguments)
    if len(numbers) > MAX_RANGE:
        raise LimitError(f"asks for a range of {len(numbers):,} numbers; allowed: {MAX_RANGE:,}")
    return numbers


def _refuse(message: object) -> None:
    raise _RefusedError(f"{text_of(message):.500}")


def _strftime_now(now: Callable[[], datetime], form: str) -> str:
    if _WIDE.search(form):
        raise LimitError(f"formats to a width ({form!r:.80})")
    return now().strftime(form)


def _to_json(
    value: Any,  # noqa: ANN401  (any JSON value)
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Return JSON as transformers' filter does: not escaped for HTML, characters as they are."""
    require_length(measured(value))
    if (len(indent) if isinstance(indent, str) else indent or 0) > _MAX_INDENT:
        raise LimitError(f"indents by {indent!r:.40}; allowed: {_MAX_INDENT}")
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _indent(text: Any, width: int | str = 4, first: bool = False, blank: bool = False) -> str:  # noqa: ANN401
    prefix = width if isinstance(width, str) else " " * min(width, _MAX_INDENT)
    text = text_of(text)
    require_length(len(text) + (text.count("\n") + 1) * len(prefix))
    indented: str = FILTERS["indent"](text, prefix, first, blank)
    return indented
