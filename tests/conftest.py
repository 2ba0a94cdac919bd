"""Tiny checkpoints and the bundles exported from them, each made once a session."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from transformers import OPTForCausalLM

# The same examples each time, so that a change is what fails; and how long one takes says nothing
# on a machine that does other work too.
settings.register_profile("skipdec", deadline=None, derandomize=True)
settings.load_profile("skipdec")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files that hold slow tests, so that workers end at the same time."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


def pytest_collection_finish() -> None:
    """Look for garbage in what tests make, not in torch and transformers: a tenth of the time."""
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)


@pytest.fixture(scope="session", autouse=True)
def traced_once() -> Iterator[None]:
    """Exports in this process share their canonical graphs, if the tests have loaded torch."""
    if "torch" not in sys.modules:
        yield
        return
    from canonical_graphs import canonical_graph

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("skipdec.exporter.graphs.trace.trace_engine", canonical_graph)
        yield


@pytest.fixture
def own_thread_pools(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands that run engines in this process leave it without a pool that later tests share."""
    from skipdec.engines.backends import ort

    monkeypatch.setattr(ort, "use_shared_thread_pool", lambda threads: None)


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """``checkpoint(structure)``: the directory of a tiny Hugging Face checkpoint."""

    @cache
    def write(structure: str) -> Path:
        from tiny_models import write_checkpoint

        return write_checkpoint(structure, tmp_path_factory.mktemp("checkpoint") / structure)

    return write


@pytest.fixture(scope="session")
def reference_model() -> Callable[[str], OPTForCausalLM]:
    """``reference_model(structure)``: the same weights in Hugging Face's own model."""

    @cache
    def build(structure: str) -> OPTForCausalLM:
        from tiny_models import tiny_model

        return tiny_model(structure)

    return build


@pytest.fixture(scope="session")
def exported(
    checkpoint: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Path]:
    """``exported(structure, quantize=..., dtype=...)``: a bundle; treat it as read-only."""

    @cache
    def export_once(structure: str, **options: object) -> Path:
        from skipdec.exporter.config import ExportConfig
        from skipdec.exporter.pipeline.exporting import export

        output = tmp_path_factory.mktemp("bundle") / structure
        model = str(checkpoint(structure))
        chosen = {"kernels": "onnxruntime"} | options  # others than this machine compiled: by name
        export(ExportConfig(model=model, output=output, verify=False, **chosen))
        return output

    return export_once
