"""Model repositories: a directory for each bundle, as Triton's Python backend wants it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

from ....engines.bundle import EngineBundle
from ....engines.checking import Problems, expanded
from ....engines.documents import write_file
from ....engines.errors import SkipDecError, UsageError
from ....engines.targets import default_device, target_of
from ...drafting.resolver import DraftResolver
from ...schedule.bundle import bundle_schedule
from ...schedule.request_schedules import ScheduleResolver
from ...scheduling.scheduler import parse_admission
from .settings import BUNDLE_NAME, TritonRepositoryConfig
from .tensors import OUTPUT_TYPES, TensorType, input_types

_MODEL = '''"""A skipdec bundle as a model of Triton; written by `skipdec triton`."""

from skipdec.runtime.serving.triton.model import TritonPythonModel

__all__ = ["TritonPythonModel"]
'''


def write_triton_repository(config: TritonRepositoryConfig) -> list[Path]:
    """Write a model for each bundle and return their directories, ``output/name``.

    All is checked before anything is written. Raises UsageError, ScheduleError, BundleError.
    """
    problems = Problems("triton")
    problems.attempt(parse_admission, config.admission)
    models = []
    for path, name in zip(config.bundles, config.names(), strict=True):
        bundle = problems.attempt(_checked, path, config)
        models.append((bundle, expanded(config.output) / name))
        problems.attempt(_require_free, models[-1][1], config.force)
    if problems.errors:
        raise problems.error()
    for bundle, directory in models:
        assert bundle is not None
        _write_model(bundle, directory, config)
    return [directory for _, directory in models]


def config_text(name: str, parameters: Mapping[str, str], *, on_gpu: bool) -> str:
    """The model configuration, a ``ModelConfig`` message in protobuf's text format.

    No batching by Triton (the engine batches by itself), any number of responses a request, and
    one instance: it holds all of a bundle's KV memory and threads.
    """
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
        f"instance_group [ {{ count: 1 kind: {'KIND_GPU' if on_gpu else 'KIND_CPU'} }} ]",
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


def _checked(path: Path, config: TritonRepositoryConfig) -> EngineBundle:
    """The bundle there, if it is whole and the settings fit it."""
    bundle = EngineBundle.open(expanded(path), verify="full" if config.is_copied else "graphs")
    own = bundle_schedule(bundle)
    model = bundle.manifest.model
    ScheduleResolver(model.num_layers, own, config.schedule, model.max_seq_len).resolve(None, 1)
    target, device = bundle.manifest.target, config.device
    backends = target_of(target).backends
    if device is not None and device.partition(":")[0] not in backends:
        allowed = ", ".join(backends)
        raise UsageError("device", f"is {device}; bundles of {target} run on {allowed}")
    DraftResolver(bundle.manifest, device, config.draft).resolve()
    return bundle


def _require_free(directory: Path, force: bool) -> None:
    if (
        directory.is_dir()
        and not (directory / "config.pbtxt").is_file()
        and any(directory.iterdir())
    ):
        raise UsageError(str(directory), "is there and no model of Triton; choose another `name`")
    if directory.exists() and not force:
        raise UsageError(str(directory), "is there already; choose another place, or --force")


def _write_model(bundle: EngineBundle, directory: Path, config: TritonRepositoryConfig) -> None:
    """Write a model; model.py last, without which Triton can't load what is half written."""
    version = directory / "1"
    try:
        if directory.exists():
            shutil.rmtree(directory)
        version.mkdir(parents=True)
        device = config.device or default_device(bundle.manifest.target)
        text = config_text(directory.name, config.to_parameters(), on_gpu=device.startswith("cuda"))
        write_file(directory / "config.pbtxt", text)
        if config.is_copied:
            bundle.save(version / BUNDLE_NAME)
        else:
            (version / BUNDLE_NAME).symlink_to(bundle.path, target_is_directory=True)
        write_file(version / "model.py", _MODEL)
    except OSError as error:
        raise SkipDecError(str(directory), f"can't be written ({error.strerror})") from error
