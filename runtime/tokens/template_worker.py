"""The process that compiles and renders one chat template; `template_process.py` starts it.

It imports only Jinja and the standard library, because a request waits while it starts, and its
memory is bounded. Its arguments are directories in which to find Jinja. Its standard input is a
socket, on which it reads requests and writes answers: first the template's source, then the
variables of each chat, in the format of ``marshal``.
"""

from __future__ import annotations

import json
import marshal
import math
import os
import resource
import struct
import sys
from datetime import datetime
from typing import Any

HEADER = struct.Struct("<cQ")  # the kind of a message, and its length in bytes
SOURCE, VARIABLES = b"s", b"v"  # requests
TEXT, REFUSED, FAILED, INVALID, EXHAUSTED = b"t", b"r", b"f", b"i", b"e"  # answers
MAX_SECONDS = 2  # of processor time, of one request
MAX_MEMORY = 512 << 20  # bytes of address space
MAX_TEXT = 1 << 24  # bytes of an answer
_CHANNEL = 0
_ERRORS = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
_READ = 1 << 20  # bytes


class _Refusal(Exception):  # noqa: N818  (raised for the template)
    """Raised by a template's ``raise_exception``."""


def main() -> None:
    """Answer requests until the other side closes the socket."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY, MAX_MEMORY))
    sys.path += sys.argv[1:]
    renderer = Renderer()
    while (request := _read()) is not None:
        _limit_time()
        _write(*renderer.answer(*request))


class Renderer:
    """Compiles one template, and renders chats with it."""

    def __init__(self) -> None:
        self._environment = _environment()
        self._template: Any = None

    def answer(self, kind: bytes, content: bytes) -> tuple[bytes, bytes]:
        """Return the kind and content of the answer to a request."""
        try:
            if kind == VARIABLES:
                return _rendered(self._template, *marshal.loads(content))
            source = content.decode("utf-8", "surrogatepass")
            self._template, answer = _compiled(self._environment, source)
            return answer
        except MemoryError:
            return EXHAUSTED, b""


def _limit_time() -> None:
    """Let the kernel end this process when it has used its time for one request."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    used = math.ceil(usage.ru_utime + usage.ru_stime)
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (used + MAX_SECONDS, hard))


def _compiled(environment: Any, source: str) -> tuple[Any, tuple[bytes, bytes]]:  # noqa: ANN401
    """Return the template, None if it can't be compiled, and the answer.

    The answer is a JSON list of the variables that the template reads, or its error.
    """
    from jinja2 import TemplateError, TemplateSyntaxError, meta

    try:
        read = meta.find_undeclared_variables(environment.parse(source))
        template = environment.from_string(source)
    except TemplateSyntaxError as error:
        return None, (INVALID, _bytes(f"line {error.lineno}: {error.message}"))
    except (TemplateError, SyntaxError, *_ERRORS) as error:
        return None, (INVALID, _bytes(str(error) or type(error).__name__))
    return template, (TEXT, json.dumps(sorted(read - environment.globals.keys())).encode())


def _rendered(template: Any, now: str, variables: dict[str, Any]) -> tuple[bytes, bytes]:  # noqa: ANN401
    """Return the answer for one chat."""
    template.environment.now = datetime.fromisoformat(now)
    from jinja2 import TemplateError

    try:
        text = _bytes(template.render(variables))
    except _Refusal as error:
        return REFUSED, _bytes(str(error)[:500])
    except (TemplateError, *_ERRORS) as error:
        return FAILED, _bytes((str(error) or type(error).__name__)[:300])
    return (EXHAUSTED, b"") if len(text) > MAX_TEXT else (TEXT, text)


def _environment() -> Any:  # noqa: ANN401
    """Return Jinja as transformers configures it for chat templates."""
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment: Any = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _generation()]
    )
    environment.filters["tojson"] = _to_json
    environment.globals |= {
        "raise_exception": _raise_exception,
        "strftime_now": lambda form: environment.now.strftime(form),
        "dict": _Dictionary(),
        "namespace": _public_namespace(),
    }
    return environment


def _generation() -> Any:  # noqa: ANN401  (a class)
    """Return ``{% generation %}``, which marks text to train and renders its content."""
    from jinja2 import nodes
    from jinja2.ext import Extension
    from jinja2.parser import Parser

    class Generation(Extension):
        tags = {"generation"}  # noqa: RUF012  (as Jinja declares it)

        def parse(self, parser: Parser) -> nodes.Node:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.CallBlock(self.call_method("shown"), [], [], body).set_lineno(line)

        def shown(self, caller: Any) -> Any:  # noqa: ANN401
            """Return the content."""
            return caller()

    return Generation


def _public_namespace() -> Any:  # noqa: ANN401  (a class)
    """Return Jinja's namespace without names that begin with an underscore."""
    from jinja2.exceptions import SecurityError
    from jinja2.utils import Namespace

    class PublicNamespace(Namespace):
        def __init__(*args: Any, **names: Any) -> None:  # noqa: ANN401  (`self` may be a name)
            for name in dict(*args[1:], **names):
                require_public(name)
            Namespace.__init__(*args, **names)

        def __setitem__(self, name: str, value: Any) -> None:  # noqa: ANN401
            require_public(name)
            super().__setitem__(name, value)

    def require_public(name: object) -> None:
        if str(name).startswith("_"):
            raise SecurityError(f"a namespace has no name {name!r:.80}")

    return PublicNamespace


class _Dictionary:
    """``dict`` as a function, and its ``fromkeys``."""

    def __call__(self, *args: Any, **names: Any) -> dict[Any, Any]:  # noqa: ANN401
        return dict(*args, **names)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:  # noqa: ANN401
        return dict.fromkeys(*args)


def _raise_exception(message: object) -> None:
    raise _Refusal(str(message))


def _to_json(
    value: Any,  # noqa: ANN401  (any JSON value)
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Return JSON that is not escaped for HTML, with characters as they are."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _read() -> tuple[bytes, bytes] | None:
    """Return the kind and the content of the next request; None at the end."""
    header = _read_exactly(HEADER.size)
    if header is None:
        return None
    kind, length = HEADER.unpack(header)
    content = _read_exactly(length)
    return None if content is None else (kind, content)


def _read_exactly(length: int) -> bytes | None:
    parts = []
    while length:
        part = os.read(_CHANNEL, min(length, _READ))
        if not part:
            return None
        parts.append(part)
        length -= len(part)
    return b"".join(parts)


def _write(kind: bytes, content: bytes) -> None:
    left = memoryview(HEADER.pack(kind, len(content)) + content)
    while left:
        left = left[os.write(_CHANNEL, left) :]


if __name__ == "__main__":
    try:
        main()
    except BrokenPipeError:  # the parent has ended
        sys.exit(1)
