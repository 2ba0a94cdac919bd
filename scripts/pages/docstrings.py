"""Griffe extension for the API reference that turns this project's docstrings into Markdown.

A worked example (``>>>``) becomes a block of code; the comment after a field becomes its
description.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import griffe

_EXAMPLE = re.compile(r"^>>> .*?(?=\n\s*\n|\Z)", re.DOTALL | re.MULTILINE)
_COMMENT = re.compile(r"  # (?!noqa|type:|:)(?P<text>[^\"']+)$")


class Docstrings(griffe.Extension):
    """Changes docstrings in place, after all preceding extensions."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:  # noqa: ANN401  (Griffe's own)
        """Turn the docstring of each class, function and field into Markdown."""
        for member in _members(pkg):
            if isinstance(member, griffe.Attribute):
                _describe(member)
            elif member.docstring is not None:  # in Markdown ``>`` starts a quotation
                fenced = _EXAMPLE.sub(r"```pycon\n\g<0>\n```", member.docstring.value)
                member.docstring.value = fenced


def _members(parent: griffe.Object) -> Iterator[griffe.Object]:
    for member in parent.members.values():
        if isinstance(member, griffe.Object):
            yield member
            yield from _members(member)


def _describe(field: griffe.Attribute) -> None:
    """Set a field's docstring, if missing, to the comment on its line."""
    if field.docstring is not None:
        field.docstring.value = field.docstring.value.replace("][", r"]\[")  # not a link
    elif field.lineno is not None and field.lineno == field.endlineno:
        line = field.lines_collection[field.filepath][field.lineno - 1]  # type: ignore[index]
        if comment := _COMMENT.search(line):
            field.docstring = griffe.Docstring(comment["text"], lineno=field.lineno, parent=field)
