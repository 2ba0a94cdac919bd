"""PrefixSharing: the option that says who finds kept prefixes.

It is apart from the cache so that reading options loads no numeric library.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator

_SHARING_BY_BOOLEAN = {"true": "shared", "false": "off"}  # also as texts, for Triton


def _from_boolean(value: object) -> object:
    return _SHARING_BY_BOOLEAN.get(str(value).lower(), value)


PrefixSharing = Annotated[Literal["shared", "client", "off"], BeforeValidator(_from_boolean)]
"""Who finds kept prefixes: all clients, each client only its own, or nobody.

True is "shared", False is "off".
"""
