"""How a model of Triton runs its bundle: written into config.pbtxt, read when it is loaded."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field

from ....engines.bundle import Verify, WeightsPlace
from ....engines.checking import MemorySize, Option, ValidatedConfig, expanded
from ....engines.errors import UsageError, shown
from ....engines.host.processor import thread_problems
from ...kv.prefix_sharing import PrefixSharing

BUNDLE_NAME = "bundle"  # beside model.py: a copy, or a link

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_RUNNING = Option(panel="Running")


class ModelSettings(ValidatedConfig):
    """What `AsyncEngine` is opened with. In config.pbtxt every value is a text."""

    schedule: Annotated[str | None, _RUNNING] = Field(
        default=None, description="of requests that name none: 2x, full, … (bundle's own)"
    )
    device: Annotated[str | None, _RUNNING] = Field(
        default=None, description="cpu or cuda (cpu; TensorRT: cuda)"
    )
    threads: Annotated[int | None, _RUNNING] = Field(default=None, ge=1, description="(all cores)")
    max_batch_size: Annotated[int, _RUNNING] = Field(
        default=8, ge=1, description="most completions at once"
    )
    kv_memory: Annotated[MemorySize | None, _RUNNING] = Field(
        default=None, description="most memory of KV caches, e.g. 2GiB (half of what is left)"
    )
    max_waiting: Annotated[int, _RUNNING] = Field(
        default=256, ge=1, description="requests that wait at most"
    )
    max_prefill_tokens: Annotated[int | None, _RUNNING] = Field(
        default=None, ge=16, description="prompt tokens of one call (2048)"
    )
    max_model_len: Annotated[int | None, _RUNNING] = Field(
        default=None, ge=1, description="positions of a request, prompt and text (the bundle's)"
    )
    admission: Annotated[str | None, _RUNNING] = Field(
        default=None, description="fcfs, or gang:min_free=2,hold_ms=8 (fcfs; on a GPU: gang)"
    )
    prefix_cache: Annotated[PrefixSharing, _RUNNING] = Field(
        default="shared",
        description="on a CPU, reuse what prompts' beginnings made: all clients', each client's "
        "own only, or off (shared)",
    )
    raw_prompt: Annotated[bool, Option()] = Field(
        default=False, description="without the template that the model was tuned with"
    )
    weights: Annotated[WeightsPlace, _RUNNING] = Field(
        default="mapped", description="mapped files, or copied: slower to open, faster steps"
    )
    verify: Annotated[Verify, _RUNNING] = Field(
        default="full", description="hash weights while they are loaded, or graphs only"
    )

    def _problems(self) -> Iterator[str]:
        yield from (f"`threads` {problem}" for problem in thread_problems(self.threads))

    def to_parameters(self) -> dict[str, str]:
        """The values that are set, as the parameters of a config.pbtxt."""
        fields = ModelSettings.model_fields
        values = {name: getattr(self, name) for name in fields}
        return {name: str(value) for name, value in values.items() if value is not None}

    @classmethod
    def from_parameters(cls, parameters: Mapping[str, Any]) -> Self:
        """Read ``parameters`` of a model configuration, as Triton's JSON has them.

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
    """What ``skipdec triton`` was asked to write."""

    bundles: Annotated[tuple[Path, ...], Option(metavar="BUNDLE", is_argument=True)] = Field(
        min_length=1, description="directories of bundles; a model each"
    )
    output: Annotated[Path, Option("-o", metavar="DIR")] = Field(
        description="the model repository; other models in it stay"
    )
    name: Annotated[str | None, Option(metavar="NAME")] = Field(
        default=None, description="of the model (that of BUNDLE)"
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
            yield f"`name` is one, bundles are {len(self.bundles)}; leave it out"
        for name, count in Counter(self.names()).items():
            if count > 1:
                yield f"{count} bundles are called {name!r}; write one at a time, with `name`"
            if not _NAME.fullmatch(name):
                yield f"{name!r} can't be a model's name; `name` may have A-Z a-z 0-9 . _ -"

    def names(self) -> tuple[str, ...]:
        """A model's for each bundle."""
        if self.name is not None:
            return (self.name,)
        return tuple(expanded(bundle).resolve().name for bundle in self.bundles)
