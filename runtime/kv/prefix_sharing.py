"""Who finds the beginnings of prompts that are kept."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator

_TRUTHS = {"true": "shared", "false": "off"}  # also as texts, which is how Triton has them


def _from_truth(value: object) -> object:
    return _TRUTHS.get(str(value).lower(), value)


PrefixSharing = Annotated[Literal["shared", "client", "off"], BeforeValidator(_from_truth)]
"""All clients, each client its own only, or none are kept; True is "shared", False is "off"."""
