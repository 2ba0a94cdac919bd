"""The options of ``skipdec fit`` as what they mean: a source, a goal, a space."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...engines.bundle.place import MANIFEST_NAME
from ...engines.errors import UsageError
from ...runtime.schedule.fields import PROMPT_DEPTHS
from .goal import Goal, MaxLoss, TargetSpeedup
from .source import BundleSource, Source
from .space import SpaceConfig
from .speed import SpeedupOf

if TYPE_CHECKING:
    from .source import ModelSource


def choose_goal(target_speedup: float | None, max_loss: str | None) -> Goal:
    """Exactly one of them. Raises UsageError."""
    if target_speedup is not None and max_loss is None:
        return TargetSpeedup(target_speedup)
    if max_loss is not None and target_speedup is None:
        return MaxLoss.parse(max_loss)
    given = "neither was" if max_loss is None else "both were"
    raise UsageError("fit", f"{given} given; give --target-speedup or --max-loss")


def choose_source(
    text: str, options: dict[str, Any], *, output: Path | None, force: bool
) -> Source:
    """Return the bundle at ``text``, or else the model of that name.

    ``options``: by name, those of an export, None where they were not given; refused for a bundle.
    A model is exported beside ``output``, or where temporary files go. Raises UsageError.
    """
    path = Path(text).expanduser()
    given = {name: value for name, value in options.items() if value is not None}
    is_bundle = (path / MANIFEST_NAME).is_file()
    if is_bundle and given:
        raise UsageError(
            text, f"is a bundle, as it was exported; leave out {', '.join(given)}, or name a model"
        )
    if is_bundle or (path.is_dir() and not (path / "config.json").is_file()):
        return BundleSource(path)
    return _model_source(text, given, output=output, force=force)


def _model_source(
    text: str, given: dict[str, Any], *, output: Path | None, force: bool
) -> ModelSource:
    """Its bundle goes beside what is written, else where temporary files go."""
    from ...exporter.config import ExportConfig
    from .source import ModelSource

    dtype = given.get("--dtype", "float16" if "--fp16" in given else "float32")
    if "--fp16" in given and dtype != "float16":
        raise UsageError("--fp16", f"contradicts --dtype {dtype}; give one of them")
    kept = given.get("--keep-bundle")
    beside = kept or output
    config = ExportConfig(
        model=text,
        output=kept,
        load_format=given.get("--load-format", "auto"),
        dtype=dtype,
        quantize=given.get("--quantize", "none"),
        head_quantize=given.get("--head-quantize"),
        force=force,
    )
    directory = Path(tempfile.gettempdir()) if beside is None else beside.absolute().parent
    return ModelSource(config, directory)


def choose_space(
    decay: list[str] | None,
    placement: list[str] | None,
    warmup: list[int] | None,
    prompt: list[str] | None,
    speedup_of: SpeedupOf,
) -> SpaceConfig:
    """What may vary; what is not given stays at its default."""
    given: dict[str, Any] = {
        "decays": decay,
        "placements": placement,
        "warmups": warmup,
        "prompts": prompt or (PROMPT_DEPTHS if speedup_of == "call" else None),
    }
    return SpaceConfig(**{name: tuple(dict.fromkeys(v)) for name, v in given.items() if v})
