"""Settings of a Triton model: written into config.pbtxt, read when the model is loaded."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field

from ....engines.checking import Option, name_of
from ....engines.errors import UsageError, shown
from ...opening import OpenOptions

BUNDLE_NAME = "bundle"  # beside model.py: a copy, or a link

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


class ModelSettings(OpenOptions):
    """The options with which a model opens its bundle; in config.pbtxt all values are texts."""

    def to_parameters(self) -> dict[str, str]:
        """Return the values that are set, as parameters of a config.pbtxt."""
        fields = OpenOptions.model_fields.keys() - {"kv_shares"}
        values = self.model_dump(include=fields, exclude_none=True)
        return {name: str(value) for name, value in sorted(values.items())}

    @classmethod
    def from_parameters(cls, parameters: Mapping[str, Any]) -> Self:
        """Read ``parameters`` of a model configuration in Triton's JSON form.

        >>> ModelSettings.from_parameters({"threads": {"string_value": "2"}}).threads
        2

        Raises UsageError for a parameter that is unknown or not allowed.
        """
        texts = {}
        for name, value in parameters.items():
            if not isinstance(value, Mapping) or not isinstance(value.get("string_value"), str):
                raise UsageError(f"parameter {name}", f"is {shown(value)}; allowed: a string_value")
            texts[name] = value["string_value"]
        return cls(**texts)


class TritonRepositoryConfig(ModelSettings):
    """The options of ``skipdec triton``."""

    bundles: Annotated[tuple[Path, ...], Option(metavar="BUNDLE", is_argument=True)] = Field(
        min_length=1, description="directories of bundles; a model each"
    )
    output: Annotated[Path, Option("-o", metavar="DIR")] = Field(
        description="the model repository; other models in it stay"
    )
    name: Annotated[str | None, Option(metavar="NAME")] = Field(
        default=None, description="name of the model (that of BUNDLE)"
    )
    is_copied: Annotated[bool, Option("--copy/--link")] = Field(
        default=False, description="the bundle into the repository, or a link to it"
    )
    force: Annotated[bool, Option()] = Field(
        default=False, description="replace models of these names"
    )

    def _problems(self) -> Iterator[str]:
        yield from super()._problems()
        if self.name is not None and len(self.bundles) > 1:
            yield f"`name` fits only one bundle, got {len(self.bundles)}; leave it out"
        for name, count in Counter(self.names()).items():
            if count > 1:
                yield f"{count} bundles are called {name!r}; write one at a time, with `name`"
            if not _NAME.fullmatch(name):
                yield f"{name!r} can't be a model's name; `name` may have A-Z a-z 0-9 . _ -"

    def names(self) -> tuple[str, ...]:
        """The name of each bundle's model."""
        if self.name is not None:
            return (self.name,)
        return tuple(name_of(bundle) for bundle in self.bundles)
