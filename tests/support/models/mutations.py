"""Damage copies of bundles by changing one parameter or one graph."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from skipdec.engines.bundle import file_record
from skipdec.engines.manifest import Manifest

Array = NDArray[Any]


def digests(directory: Path) -> dict[str, str]:
    """Return the SHA-256 of each file below ``directory`` by relative path."""
    return {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in directory.rglob("*")
        if path.is_file()
    }


def copy_bundle(bundle: Path, directory: Path) -> Path:
    """Return a copy that may be changed; tiny float32 bundles take milliseconds."""
    return Path(shutil.copytree(bundle, directory / bundle.name))


def _graph_path(bundle: Path, engine: str) -> Path:
    manifest = Manifest.from_json((bundle / "manifest.json").read_bytes(), "manifest.json")
    return bundle / next(spec.graph for spec in manifest.engines if spec.name == engine)


def edit_parameters(
    bundle: Path, engine: str, names: tuple[str, ...], edit: Callable[..., tuple[Array, ...]]
) -> None:
    """Replace float32 parameters of ``engine`` by ``edit(*values)`` and update the manifest."""
    path = _graph_path(bundle, engine)
    graph = onnx.load(path, load_external_data=False).graph
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    views = []
    for name in names:
        location = {entry.key: entry.value for entry in tensors[name].external_data}
        views.append(
            np.memmap(
                path.parent / location["location"],
                np.float32,
                "r+",
                offset=int(location["offset"]),
                shape=tuple(tensors[name].dims),
            )
        )
    values = edit(*(view.copy() for view in views))
    for view, value in zip(views, values, strict=True):
        assert not np.array_equal(view, value), "the mutation changes nothing"
        view[...] = value
        view.flush()
    reseal(bundle)


def edit_graph(bundle: Path, engine: str, edit: Callable[[onnx.GraphProto], None]) -> None:
    """Apply ``edit`` to the graph of ``engine`` and update the manifest."""
    path = _graph_path(bundle, engine)
    model = onnx.load(path, load_external_data=False)
    before = model.SerializeToString()
    edit(model.graph)
    assert model.SerializeToString() != before, "the mutation changes nothing"
    path.write_bytes(model.SerializeToString())
    reseal(bundle)


def reseal(bundle: Path, **changes: object) -> None:
    """Make the manifest match the files, with ``changes`` to its fields."""
    manifest = Manifest.from_json((bundle / "manifest.json").read_bytes(), "manifest.json")
    files = tuple(file_record(bundle, record.path) for record in manifest.files)
    changed = manifest.model_copy(update={"files": files, **changes}).with_digest()
    (bundle / "manifest.json").write_text(changed.to_json())


def narrow_window(graph: onnx.GraphProto) -> None:
    """Let each token attend only to itself and the token before."""
    (attention,) = (node for node in graph.node if node.op_type == "GroupQueryAttention")
    attention.attribute.append(onnx.helper.make_attribute("local_window_size", 2))
