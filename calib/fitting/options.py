"""Turn the options of ``skipdec fit`` into a source, a goal and a space."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from ...engines.bundle.place import MANIFEST_NAME
from ...engines.checking import Option, ValidatedConfig
from ...engines.errors import UsageError
from ...exporter.config import ExportConfig, LoadFormat, chosen_dtype
from .goal import Goal, MaxLoss, TargetSpeedup
from .source import BundleSource, ModelSource, Source

Weights = Literal["none", "int8", "int8-block", "int4"]

_MODEL = Option(panel="If it is a MODEL")


class ModelOptions(ValidatedConfig):
    """Export options of a model to fit; omitted ones have `ExportConfig`'s defaults."""

    load_format: Annotated[LoadFormat | None, _MODEL] = Field(
        default=None, description="dummy: random weights (auto)"
    )
    fp16: Annotated[bool, _MODEL] = Field(default=False, description="same as --dtype float16")
    dtype: Annotated[Literal["float32", "float16"] | None, _MODEL] = Field(
        default=None, description="type of the export (float32)"
    )
    quantize: Annotated[Weights | None, _MODEL] = Field(
        default=None, description="format of the weights (none)"
    )
    head_quantize: Annotated[Weights | None, _MODEL] = Field(
        default=None, description="format of the head (as --quantize)"
    )
    keep_bundle: Annotated[Path | None, Option(panel="If it is a MODEL", metavar="DIR")] = Field(
        default=None, description="keep the bundle, with the chosen schedule"
    )


def choose_goal(target_speedup: float | None, max_loss: str | None) -> Goal:
    """Return the goal, of which exactly one option must be given. Raises UsageError."""
    if target_speedup is not None and max_loss is None:
        return TargetSpeedup(target_speedup)
    if max_loss is not None and target_speedup is None:
        return MaxLoss.parse(max_loss)
    given = "neither was" if max_loss is None else "both were"
    raise UsageError("fit", f"{given} given; give --target-speedup or --max-loss")


def choose_source(text: str, options: ModelOptions, *, output: Path | None, force: bool) -> Source:
    """Return the bundle at ``text``, which takes no ``options``, or the model of that name.

    A model is exported beside ``output``, or in the directory of temporary files. Raises
    UsageError.
    """
    path = Path(text).expanduser()
    given = [name for name, value in options if value]
    is_bundle = (path / MANIFEST_NAME).is_file()
    if is_bundle and given:
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise UsageError(text, f"is a bundle, already exported; leave out {flags}, or name a model")
    if is_bundle or (path.is_dir() and not (path / "config.json").is_file()):
        return BundleSource(path)
    return _model_source(text, options, output=output, force=force)


def _model_source(
    text: str, options: ModelOptions, *, output: Path | None, force: bool
) -> ModelSource:
    """Return a model whose bundle goes beside the output, else to temporary files."""
    given = options.model_dump(
        include={"load_format", "quantize", "head_quantize"}, exclude_none=True
    )
    config = ExportConfig(
        model=text,
        output=options.keep_bundle,
        force=force,
        **chosen_dtype(options.dtype, fp16=options.fp16),
        **given,
    )
    beside = options.keep_bundle or output
    directory = Path(tempfile.gettempdir()) if beside is None else beside.absolute().parent
    return ModelSource(config, directory)
