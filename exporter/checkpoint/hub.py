"""Locates a checkpoint's files: in a local directory, or by downloading them from the hub."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ...engines.bundle.place import MANIFEST_NAME
from ...engines.checking import expanded
from ...engines.documents import kind_problem
from ...engines.errors import CheckpointError, did_you_mean
from ...engines.host.installation import require_extra
from ..architecture.architecture import hub_id, short_names
from ..config import CheckpointSource, LoadFormat
from .mistaken import mistaken
from .template import TEMPLATE_NAME
from .tokenizer import TEXT_FILES

_SMALL_FILES = (
    "config.json",
    "adapter_config.json",
    "tokenizer.json",
    *TEXT_FILES,
    "schedule.json",
    "training_schedule.json",
    TEMPLATE_NAME,
)
_WEIGHT_FILES: dict[LoadFormat, tuple[str, ...]] = {
    "safetensors": ("model.safetensors", "model.safetensors.index.json", "model-*.safetensors"),
    "bin": ("pytorch_model.bin", "pytorch_model.bin.index.json", "pytorch_model-*.bin"),
    "dummy": (),
}
_SUFFIXES = frozenset({".bin", ".jinja", ".json", ".model", ".safetensors", ".txt"})
_MORE_TEMPLATES = "additional_chat_templates"  # a directory that transformers reads


@dataclass(frozen=True)
class CheckpointDirectory:
    """A checkpoint's directory; ``revision`` is the hub's commit, None for a local one."""

    name: str
    path: Path
    revision: str | None


def locate(source: CheckpointSource) -> CheckpointDirectory:
    """Return the directory of ``source.model``, downloading it if it is a hub id.

    An existing directory has priority, then the short names, then the hub. With
    ``load_format="auto"``, ``.bin`` files are downloaded only if there are no safetensors. Raises
    CheckpointError with a remedy, also for files that are not regular ones.
    """
    local = expanded(source.model)
    if local.is_dir():
        if (local / MANIFEST_NAME).is_file() and not (local / "config.json").is_file():
            raise CheckpointError(
                source.model,
                "is a bundle, not a checkpoint; pass the directory that it was exported from",
            )
        return _directory(local.resolve().name, local.resolve())
    if local.exists() and (problem := mistaken(local)) is not None:
        raise CheckpointError(source.model, problem)
    if local.exists() or source.model.startswith(("/", "./", "../", "~")):
        problem = "is not a directory" if local.exists() else "does not exist"
        raise CheckpointError(
            source.model,
            f"{problem}; pass a directory with config.json, a hub id, or a short name such as "
            "opt-125m",
        )
    formats: list[LoadFormat] = (
        ["safetensors", "bin"] if source.load_format == "auto" else [source.load_format]
    )
    for load_format in formats:
        path = _download(source, (*_SMALL_FILES, *_WEIGHT_FILES[load_format]))
        if any(any(path.glob(pattern)) for pattern in _WEIGHT_FILES[load_format]):
            break
    return _directory(hub_id(source.model), path, path.name)


def _directory(name: str, path: Path, revision: str | None = None) -> CheckpointDirectory:
    require_regular_files(path)
    return CheckpointDirectory(name, path, revision)


def require_regular_files(directory: Path) -> None:
    """Raise CheckpointError that names every checkpoint file that is not a regular file.

    A pipe would block the libraries that open it, a link to /dev/zero never ends, and a directory
    or a broken link would be treated as missing.
    """
    found = (
        (path.name, kind_problem(path))
        for folder in (directory, directory / _MORE_TEMPLATES)
        for path in sorted(folder.glob("*"))
        if path.suffix in _SUFFIXES
    )
    problems = [f"{name} {problem}" for name, problem in found if problem is not None]
    if problems:
        raise CheckpointError(str(directory), *(f"{each}; replace it" for each in problems))


def _download(source: CheckpointSource, patterns: tuple[str, ...]) -> Path:
    require_extra("export", "downloading a checkpoint")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    model = hub_id(source.model)
    meant = did_you_mean(source.model.rpartition("/")[2], short_names())
    try:
        path = snapshot_download(
            model,
            revision=source.revision,
            local_files_only=source.local_files_only,
            allow_patterns=list(patterns),
        )
    except HFValidationError as error:
        problem = (
            f"is neither a directory nor a hub id; {meant}pass a directory with config.json, a hub "
            "id like me/my-opt, or a short name such as opt-125m"
        )
        raise CheckpointError(source.model, problem) from error
    except GatedRepoError as error:
        problem = "is gated on the hub; accept its terms there and run: hf auth login"
        raise CheckpointError(model, problem) from error
    except RevisionNotFoundError as error:
        problem = f"has no revision {source.revision!r} on the hub"
        raise CheckpointError(model, problem) from error
    except RepositoryNotFoundError as error:
        problem = (
            f"is not a directory here, and not found on the hub; {meant}if it is private, run: "
            "hf auth login"
        )
        raise CheckpointError(model, problem) from error
    except (LocalEntryNotFoundError, HfHubHTTPError) as error:
        problem = (
            f"is not in the local cache and the hub can't be reached; {meant}pass a local "
            "directory with config.json and weights"
        )
        raise CheckpointError(model, problem) from error
    return Path(path)
