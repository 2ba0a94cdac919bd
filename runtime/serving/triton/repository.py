"""Model repositories: a directory for each bundle, in the form of Triton's Python backend."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from ....engines.backends.session import parse_device
from ....engines.bundle import EngineBundle
from ....engines.bundle.place import Place
from ....engines.checking import Problems, expanded
from ....engines.documents import write_file
from ....engines.errors import UsageError
from ....engines.targets import default_device
from ...drafting.resolver import DraftResolver
from ...schedule.bundle import bundle_schedule
from ...schedule.request_schedules import ScheduleResolver
from .settings import BUNDLE_NAME, TritonRepositoryConfig
from .tensors import OUTPUT_TYPES, TensorType, input_types

_CONFIGURATION = "config.pbtxt"
_MODEL = '''"""A skipdec bundle as a model of Triton; written by `skipdec triton`."""

from skipdec.runtime.serving.triton.model import TritonPythonModel

__all__ = ["TritonPythonModel"]
'''


def write_triton_repository(config: TritonRepositoryConfig) -> list[Path]:
    """Write a model for each bundle and return their directories, ``output/name``.

    Everything is checked before anything is written. Each model is published atomically; an
    existing one stays until then. Raises UsageError, ScheduleError, BundleError, and OSError on a
    full disk.
    """
    TritonRepositoryConfig.require(config)
    problems = Problems("triton")
    directories = [config.output / name for name in config.names()]
    places = [_place(directory) for directory in directories]
    bundles = []
    for path, place in zip(config.bundles, places, strict=True):
        problems.attempt(place.check, force=config.force)
        if (bundle := problems.attempt(_checked, path, config)) is not None:
            problems.attempt(_require_kept, bundle, place, places, config.is_copied)
            bundles.append(bundle)
    if problems.errors:
        raise problems.error()
    for name, place, bundle in zip(config.names(), places, bundles, strict=True):
        with place.replaced(force=config.force) as directory:
            _write_model(bundle, directory, name, config)
    return directories


def config_text(name: str, parameters: Mapping[str, str], kind: str, index: int | None) -> str:
    """Return the model configuration, a ``ModelConfig`` message in protobuf's text format.

    It has no batching by Triton, because the engine batches itself; any number of responses per
    request; and one instance, which holds all of a bundle's KV memory and threads. With the
    ``kind`` cuda, there is one on GPU ``index`` or, if that is None, on each.
    """
    gpus = "" if index is None else f" gpus: [ {index} ]"
    group = f"KIND_GPU{gpus}" if kind == "cuda" else "KIND_CPU"
    tensors = [_tensor("input", *entry) for entry in input_types().items()]
    tensors += [_tensor("output", *entry) for entry in OUTPUT_TYPES.items()]
    settings = [
        f"parameters {{ key: {_quoted(key)} value {{ string_value: {_quoted(value)} }} }}"
        for key, value in parameters.items()
    ]
    lines = [
        f"name: {_quoted(name)}",
        'backend: "python"',
        "max_batch_size: 0",
        "model_transaction_policy { decoupled: true }",
        f"instance_group [ {{ count: 1 kind: {group} }} ]",
        *settings,
        *tensors,
    ]
    return "\n".join(lines) + "\n"


def _tensor(kind: str, name: str, tensor: TensorType) -> str:
    optional = " optional: true" if kind == "input" else ""
    return (
        f'{kind} {{ name: "{name}" data_type: TYPE_{tensor.data_type} '
        f"dims: [ {tensor.size} ]{optional} }}"
    )


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _place(directory: Path) -> Place:
    return Place(Path(os.path.realpath(directory)), _CONFIGURATION, "a model of Triton")


def _write_model(
    bundle: EngineBundle, directory: Path, name: str, config: TritonRepositoryConfig
) -> None:
    version = directory / "1"
    version.mkdir()
    target = bundle.manifest.target
    kind, index = parse_device(config.device or default_device(target), target)
    text = config_text(name, config.to_parameters(), kind, index)
    write_file(directory / _CONFIGURATION, text)
    if config.is_copied:
        bundle.save(version / BUNDLE_NAME)
    else:
        (version / BUNDLE_NAME).symlink_to(bundle.path, target_is_directory=True)
    write_file(version / "model.py", _MODEL)


def _checked(path: Path, config: TritonRepositoryConfig) -> EngineBundle:
    """Return the bundle at ``path`` after checking that it is complete and the settings fit it."""
    bundle = EngineBundle.open(expanded(path), verify="full" if config.is_copied else "graphs")
    ScheduleResolver.of(bundle.manifest.model, bundle_schedule(bundle), config.schedule)
    if config.device is not None:
        parse_device(config.device, bundle.manifest.target)
    DraftResolver(bundle.manifest, config.device, config.draft).resolve()
    return bundle


def _require_kept(
    bundle: EngineBundle, own: Place, places: Sequence[Place], is_copied: bool
) -> None:
    """Raise UsageError for a bundle that replacing a model would delete before it is copied."""
    for place in places:
        if bundle.path.is_relative_to(place.target) and not (is_copied and place == own):
            raise UsageError(
                str(bundle.path),
                f"lies in {place.target}, which would be replaced; move it away, or write that "
                "model alone, with --copy",
            )
