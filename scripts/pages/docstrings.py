"""Griffe extension for the API reference: this project's docstrings and comments in Markdown.

A worked example (``>>>``) becomes a block of code, and the comment behind a field its description.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

_EXAMPLE = re.compile(r"^>>> .*?(?=\n\s*\n|\Z)", re.DOTALL | re.MULTILINE)
_COMMENT = re.compile(r"  # (?!noqa|type:|:)(?P<text>[^\"']+)$")


class Docstrings(griffe.Extension):
    """Changes docstrings in place as Griffe reads them."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:  # noqa: ANN401  (Griffe's own)
        """Fence each example up to a blank line: to Markdown ``>`` is a quotation."""
        if obj.docstring is not None:
            obj.docstring.value = _EXAMPLE.sub(r"```pycon\n\g<0>\n```", obj.docstring.value)

    def on_attribute_instance(self, *, attr: griffe.Attribute, **_: Any) -> None:  # noqa: ANN401
        """Take the comment in a field's line where it has no docstring."""
        if attr.docstring is None and attr.lineno is not None and attr.lineno == attr.endlineno:
            line = attr.lines_collection[attr.filepath][attr.lineno - 1]  # type: ignore[index]
            if comment := _COMMENT.search(line):
                attr.docstring = griffe.Docstring(comment["text"], lineno=attr.lineno, parent=attr)
