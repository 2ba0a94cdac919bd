"""Commands that run a model take a checkpoint in place of a bundle, and export it once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

from pydantic import Field

from ...engines.bundle.place import MANIFEST_NAME
from ...engines.checking import Option, ValidatedConfig, expanded
from ...engines.errors import UsageError
from ...engines.manifest import FloatType, Quantization


class ExportChoice(ValidatedConfig):
    """The options with which a checkpoint is exported."""

    quantize: Annotated[Quantization, Option()] = Field(
        default="none", description="of a checkpoint's weights, as for skipdec export"
    )
    dtype: Annotated[FloatType, Option()] = Field(
        default="float32", description="of a checkpoint's float weights, as for skipdec export"
    )


Exporter = Callable[[str, ExportChoice, bool], Path | None]
"""Returns the bundle of a checkpoint, exporting it if necessary; None for anything else. The last
argument: report only errors."""

exporter: Exporter | None = None  # set by the command line, as the runtime imports no exporter


def bundle_of(model: Path, choice: ExportChoice, *, quiet: bool) -> Path:
    """Return the bundle at ``model``, or that of the checkpoint with this path or name.

    A path to neither is returned unchanged, so that opening it raises the error. Raises UsageError
    for a bundle with options for an export, and what an export raises.
    """
    if (expanded(model) / MANIFEST_NAME).is_file():
        if choice.model_fields_set:
            names = ", ".join(f"--{name}" for name in sorted(choice.model_fields_set))
            raise UsageError(names, f"is for checkpoints, and {model} is a bundle; leave it out")
        return model
    found = None if exporter is None else exporter(str(model), choice, quiet)
    return model if found is None else found
