"""A journal of finished engines, keyed by content, for resuming an interrupted run."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

import onnx_ir as ir

from ...engines.bundle import file_record
from ...engines.documents import naming_file, parse_json
from ...engines.errors import CheckpointError
from ...engines.manifest import FileRecord, ModelSpec, PrecisionSpec, json_digest
from ..architecture.weights import Parameter
from ..checkpoint.reader import CheckpointReader
from ..graphs.lowering import parameters_as_inputs
from ..quantization.migration import Factors
from .engine import BuiltEngine

if TYPE_CHECKING:
    from .tensorrt_options import TensorRtOptions


JOURNAL_NAME = "journal.jsonl"
# Code that may determine an engine's bytes; reports, commands and verification change freely.
_CODE = (
    "engines/**/*.py",
    "engines/constants/constants.json",
    "exporter/*.py",
    *(
        f"exporter/{name}/**/*.py"
        for name in ("architecture", "building", "checkpoint", "graphs", "quantization")
    ),
)
_PACKAGE = Path(__file__).resolve().parents[2]  # in a checkout, the repository

COMPILING_TOOLS = ("skipdec", "numpy", "onnx", "onnx-ir")
TOOLS = (*COMPILING_TOOLS, "onnxscript", "onnxruntime", "torch")
_GENERATION_FIELDS = {
    "end_token_ids",
    "sampling_defaults",
}  # facts of a model that don't affect engines
_ALSO_FROM = {"onnxruntime": "onnxruntime-gpu"}  # the same module from another distribution


class Journal:
    """One line per ONNX engine, or plan of an engine, built in ``directory``.

    A line has the engine's content key (a hash of everything that determines its bytes), its
    description, its files' sizes and hashes, and a digest. It is on disk before ``record`` returns;
    truncated or damaged lines are ignored. Publishing the bundle deletes the journal. ``record`` is
    thread-safe.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._path = directory / JOURNAL_NAME
        self._entries = dict(self._read())
        self._lock = threading.Lock()

    def built(self, key: str) -> BuiltEngine | None:
        """Return the entry of ``key`` if its files still have the recorded content."""
        built = self._entries.get(key)
        if built is None or not all(map(self._is_intact, built.files)):
            return None
        return built.model_copy(update={"resumed": True})

    def record(self, key: str, built: BuiltEngine) -> None:
        """Record that ``built``, an engine or one of its plans, is on disk."""
        document = {"key": key, "engine": built.model_dump(mode="json")}
        with self._lock, naming_file(self._path), self._path.open("a") as file:
            # The leading newline ends a line that a killed run cut short.
            file.write("\n" + json.dumps(document | {"digest": json_digest(document)}))
            file.flush()
            os.fsync(file.fileno())
            self._entries[key] = built

    def _read(self) -> Iterator[tuple[str, BuiltEngine]]:
        if not self._path.is_file():
            return
        for line in self._path.read_text(errors="replace").splitlines():
            try:
                document = parse_json(line, CheckpointError, subject=JOURNAL_NAME)
                if document.pop("digest") != json_digest(document):
                    continue
                found = document["engine"] | {"directory": self._directory}
                yield str(document["key"]), BuiltEngine.model_validate(found)
            except (CheckpointError, ValueError, LookupError, TypeError, AttributeError):
                continue  # the engine will be built again

    def _is_intact(self, record: FileRecord) -> bool:
        path = self._directory / record.path
        return (
            path.is_file()
            and path.stat().st_size == record.size
            and file_record(self._directory, record.path) == record
        )


def tool_versions(tools: Sequence[str] = TOOLS) -> dict[str, str]:
    """Return the versions of ``tools``, by default all that affect the bytes of an ONNX engine."""
    return {tool: _version(tool) for tool in tools}


def _version(tool: str) -> str:
    """Return the version of a tool, from whichever distribution installed it."""
    try:
        return version(tool)
    except PackageNotFoundError:
        if tool not in _ALSO_FROM:
            raise
        return version(_ALSO_FROM[tool])


def engine_code() -> list[Path]:
    """Return the files of the package that may determine an engine's bytes."""
    return sorted(path for pattern in _CODE for path in _PACKAGE.glob(pattern))


@cache
def _code_digest() -> str:
    """Return the SHA-256 of the source, so that engines built by other code are not reused."""
    digest = hashlib.sha256()
    for path in engine_code():
        name = path.relative_to(_PACKAGE).as_posix()
        digest.update(name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def graph_digest(graph: ir.Model) -> str:
    """Return the SHA-256 of a graph without data, in serialised form."""
    proto = ir.to_proto(parameters_as_inputs(graph))
    return hashlib.sha256(proto.SerializeToString(deterministic=True)).hexdigest()


def content_key(
    name: str,
    target: str,
    canonical_digest: str,
    parameters: tuple[Parameter, ...],
    model: ModelSpec,
    precision: PrecisionSpec,
    reader: CheckpointReader,
    factors: Factors,
) -> str:
    """Return a hash that changes whenever the engine's files would change.

    Reads each of the engine's tensors once to hash it. ``canonical_digest`` is the digest of the
    traced graph, which all layers share; ``factors`` migrate the engine's weights.
    """
    sources = {source for parameter in parameters for source in parameter.sources}
    return json_digest(
        {
            "name": name,
            "target": target,
            "graph": canonical_digest,
            "tensors": {source: reader.content_id(source) for source in sources},
            "model": model.model_dump(mode="json", exclude=_GENERATION_FIELDS),
            "precision": precision.model_dump(mode="json"),
            "factors": dict(factors),
            "tools": tool_versions(),
            "code": _code_digest(),
        }
    )


def plan_key(
    path: str, source: tuple[FileRecord, ...], tensorrt: TensorRtOptions, capacity: int | None
) -> str:
    """Return a hash that changes whenever the plan at ``path``, for one KV capacity, would change.

    ``source`` are the files of its canonical engine. Kernel timings, which may vary between builds,
    are not included.
    """
    return json_digest(
        {
            "path": path,
            "target": tensorrt.target,
            "source": [record.sha256 for record in source],
            "precision": tensorrt.precision.model_dump(mode="json"),
            "build": tensorrt.build.model_dump(mode="json"),
            "capacity": capacity,
            "tools": tool_versions(COMPILING_TOOLS),
            "code": _code_digest(),
        }
    )
