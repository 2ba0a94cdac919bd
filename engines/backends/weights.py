"""Copies of a graph's weights in this process's memory, in huge pages if available.

ONNX Runtime maps weights files, which copies nothing and shares the pages between processes. A copy
takes as long as reading, but needs fewer page-table walks while a step streams gigabytes.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

import onnxruntime

from ..documents import open_regular
from ..errors import BundleError
from ..manifest import EngineSpec
from ..memory import Array, HostMemory

if TYPE_CHECKING:
    from ..bundle import EngineBundle

_MAX_GRAPH = 2**31 - 1  # bytes, as protobuf allows
_CHUNK = 1 << 20  # bytes; small enough to be hashed from the cache
# Field numbers in onnx.proto.
_MODEL_GRAPH, _GRAPH_INITIALIZER = 7, 5
_TENSOR_DIMS, _TENSOR_TYPE, _TENSOR_NAME, _TENSOR_EXTERNAL_DATA = 1, 2, 8, 13
_ENTRY_KEY, _ENTRY_VALUE = 1, 2
_HELD_AS: Mapping[int, str] = {  # a numpy type of the same size, by ONNX's number
    1: "float32",
    2: "uint8",
    3: "int8",
    6: "int32",
    7: "int64",
    10: "float16",
    16: "uint16",  # bfloat16
}


FileCopies = dict[tuple[str, str], Array]
"""Contents of weights files that several engines share, by the bundle's digest and path."""


def copy_weights(
    bundle: EngineBundle,
    spec: EngineSpec,
    options: onnxruntime.SessionOptions,
    copies: FileCopies,
) -> tuple[onnxruntime.OrtValue, ...]:
    """Read an engine's weights and make a session of ``options`` use them instead of the files.

    With ``bundle.hashes_weights`` they are hashed while they are read. ``copies`` keeps the files
    that several engines share. The returned values must outlive the session. Raises BundleError for
    a file that differs from the manifest or is too short for the graph, and CapacityError if memory
    is short.
    """
    folder = PurePosixPath(spec.graph).parent
    files = {path: _content(bundle, path, copies) for path in spec.weights}
    values = []
    try:
        for tensor in external_tensors(memoryview(bundle.read(spec.graph, _MAX_GRAPH))):
            array = tensor.view(files[str(folder / tensor.file)])
            value = onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(
                array, tensor.element_type
            )
            options.add_initializer(tensor.name, value)
            values.append(value)
    except (LookupError, RuntimeError, ValueError) as error:
        raise BundleError(
            f"engine {spec.name} ({bundle.file(spec.graph)})",
            f"its weights can't be found ({error}); export the model again",
        ) from error
    return tuple(values)


def _content(bundle: EngineBundle, path: str, copies: FileCopies) -> Array:
    """Return the content of a weights file, perhaps an earlier copy of one that engines share."""
    draft, key = bundle.manifest.draft_head, (bundle.manifest.digest, path)
    if draft is None or path not in draft.engine.weights:
        return _read(bundle, path)
    if key not in copies:
        copies[key] = _read(bundle, path)
    return copies[key]


def _read(bundle: EngineBundle, path: str) -> Array:
    """Return the content of a weights file as uint8 [size]."""
    record = next(record for record in bundle.manifest.files if record.path == path)
    content = HostMemory().allocate(record.size)
    view, filled, digest = content.data, 0, hashlib.sha256()
    try:
        with open_regular(bundle.locate(path)) as file:
            while count := file.readinto(view[filled : filled + _CHUNK]):
                if bundle.hashes_weights:
                    digest.update(view[filled : filled + count])
                filled += count
    except OSError as error:
        raise _damaged(bundle, path, f"can't be read ({error.strerror or error})") from error
    if filled < record.size:
        raise _damaged(bundle, path, f"has {filled:,} bytes; expected {record.size:,}")
    if bundle.hashes_weights and digest.hexdigest() != record.sha256:
        seen = digest.hexdigest()
        raise _damaged(bundle, path, f"has SHA-256 {seen[:12]}…; expected {record.sha256[:12]}…")
    return content


def _damaged(bundle: EngineBundle, path: str, problem: str) -> BundleError:
    return BundleError(
        str(bundle.path), f"{path}: {problem}", "the bundle is damaged; export the model again"
    )


@dataclass(frozen=True)
class ExternalTensor:
    """An initialiser whose bytes are in a file beside the graph."""

    name: str
    element_type: int  # ONNX's number
    shape: tuple[int, ...]
    file: str  # relative to the graph's folder
    offset: int  # in bytes

    def view(self, content: Array) -> Array:
        """Return a view of the tensor in the file's ``content``, uint8 [bytes].

        Raises ValueError if the content is too short and KeyError for an unsupported element type.
        """
        held_as = _HELD_AS[self.element_type]
        nbytes = math.prod(self.shape) * content[:0].view(held_as).itemsize
        return content[self.offset : self.offset + nbytes].view(held_as).reshape(self.shape)


def external_tensors(graph: memoryview) -> Iterator[ExternalTensor]:
    """Yield the initialisers of an ONNX model that are stored in other files.

    Raises ValueError or LookupError for an invalid model.
    """
    for content in _messages(graph, _MODEL_GRAPH):
        for tensor in _messages(content, _GRAPH_INITIALIZER):
            entries = {
                _text(entry, _ENTRY_KEY): _text(entry, _ENTRY_VALUE)
                for entry in _messages(tensor, _TENSOR_EXTERNAL_DATA)
            }
            if entries:
                yield ExternalTensor(
                    name=_text(tensor, _TENSOR_NAME),
                    element_type=_numbers(tensor, _TENSOR_TYPE)[0],
                    shape=tuple(_numbers(tensor, _TENSOR_DIMS)),
                    file=entries["location"],
                    offset=int(entries.get("offset", 0)),
                )


def _text(message: memoryview, field: int) -> str:
    for value in _messages(message, field):
        return str(value, "utf-8")
    raise LookupError(f"a message without field {field}")


def _messages(message: memoryview, field: int) -> Iterator[memoryview]:
    """Yield the values of a length-delimited field: texts or nested messages."""
    for number, value in _fields(message):
        if number == field and isinstance(value, memoryview):
            yield value


def _numbers(message: memoryview, field: int) -> list[int]:
    """Return the values of a varint field, repeated or packed."""
    numbers: list[int] = []
    for found, value in _fields(message):
        if found != field:
            continue
        if isinstance(value, int):
            numbers.append(value)
            continue
        position = 0
        while position < len(value):
            number, position = _varint(value, position)
            numbers.append(number)
    return numbers


def _fields(message: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """Yield the number and value of each field; fixed-width fields are skipped."""
    position = 0
    while position < len(message):
        key, position = _varint(message, position)
        match key & 7:
            case 0:
                value, position = _varint(message, position)
                yield key >> 3, value
            case 2:
                length, position = _varint(message, position)
                yield key >> 3, message[position : position + length]
                position += length
            case 1:
                position += 8
            case 5:
                position += 4
            case kind:
                raise ValueError(f"a field of kind {kind}")


def _varint(message: memoryview, position: int) -> tuple[int, int]:
    """Return a varint (seven bits per byte, lowest first) and the position after it."""
    number = shift = 0
    while (byte := message[position]) & 0x80:
        number |= (byte & 0x7F) << shift
        shift, position = shift + 7, position + 1
        if shift > 63:
            raise ValueError("a number of more than ten bytes")
    return number | byte << shift, position + 1
