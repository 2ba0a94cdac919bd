"""Provide tiny checkpoints and their exported bundles, each made once per session."""

from __future__ import annotations

import gc
import logging
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# Examples are the same in each run, so that only a change can fail. Their time says nothing
# on a busy machine.
settings.register_profile("skipdec", deadline=None, derandomize=True)
settings.load_profile("skipdec")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with files that hold slow tests, so that workers finish at the same time."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


def pytest_collection_finish() -> None:
    """Exclude torch and transformers from garbage collection, which saves a tenth of the time."""
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)


@pytest.fixture(scope="session", autouse=True)
def traced_once() -> Iterator[None]:
    """Share canonical graphs between exports in this process, if the tests have loaded torch."""
    if "torch" not in sys.modules:
        yield
        return
    from canonical_graphs import canonical_graph
    from torch.onnx._internal.exporter._registration import ONNXRegistry

    read_operators = cache(ONNXRegistry.from_torchlib)  # else a third of each trace
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ONNXRegistry, "from_torchlib", staticmethod(read_operators))
        patch.setattr("skipdec.exporter.graphs.trace.trace_engine", canonical_graph)
        yield


@pytest.fixture(scope="session", autouse=True)
def tokenizers_read_once() -> Iterator[None]:
    """Start one process for equal tokenizer files instead of one per checkpoint."""
    from remembered_tokenizers import in_limits

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("skipdec.exporter.checkpoint.tokenizer._in_limits", in_limits)
        yield


@pytest.fixture(autouse=True)
def own_log_handlers() -> Iterator[None]:
    """Remove the handlers that a test adds to the root logger, e.g. by calling `skipdec serve`.

    They write to the test's captured stderr, which is closed when it ends.
    """
    root = logging.getLogger()
    before = root.handlers[:]
    yield
    for handler in root.handlers[:]:
        if handler not in before:
            root.removeHandler(handler)


@pytest.fixture(scope="module")
def verified_here() -> Iterator[None]:
    """Verify in this process, because a new one would import torch for each bundle."""
    from in_process_verifier import InProcessVerifier

    with pytest.MonkeyPatch.context() as patch:
        name = "skipdec.exporter.verification.process.start_verifier"
        patch.setattr(name, lambda *_: InProcessVerifier())
        yield


@pytest.fixture
def own_thread_pools(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep commands run in this process from leaving a thread pool to later tests."""
    from skipdec.engines.backends import ort

    monkeypatch.setattr(ort, "use_shared_thread_pool", lambda threads: None)


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return ``checkpoint(structure)``, the directory of a tiny Hugging Face checkpoint."""

    @cache
    def write(structure: str) -> Path:
        from tiny_models import write_checkpoint

        return write_checkpoint(structure, tmp_path_factory.mktemp("checkpoint") / structure)

    return write


@pytest.fixture(scope="session")
def reference_model() -> Callable[[str], PreTrainedModel]:
    """Return ``reference_model(structure)``, the same weights in Hugging Face's model."""

    @cache
    def build(structure: str) -> PreTrainedModel:
        from tiny_models import tiny_model

        return tiny_model(structure)

    return build


@pytest.fixture(scope="session")
def exported(
    checkpoint: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Path]:
    """Return ``exported(structure, quantize=..., dtype=...)``, a read-only bundle."""

    @cache
    def export_once(structure: str, **options: object) -> Path:
        from skipdec.exporter.config import ExportConfig
        from skipdec.exporter.pipeline.exporting import export

        output = tmp_path_factory.mktemp("bundle") / structure
        model = str(checkpoint(structure))
        chosen = {"kernels": "onnxruntime"} | options  # do not depend on compiled kernels
        export(ExportConfig(model=model, output=output, verify=False, **chosen))
        return output

    return export_once


@pytest.fixture(scope="session")
def text_bundle(
    checkpoint: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Return a read-only bundle of 6 layers with a byte tokenizer and schedule 2x, horizon 4."""
    from text_bundles import STRUCTURE, export_text_bundle

    return export_text_bundle(checkpoint(STRUCTURE), tmp_path_factory.mktemp("text"))


@pytest.fixture(scope="session")
def int8_bundle(
    checkpoint: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Return ``text_bundle`` in int8, for skipdec's kernels if they were compiled: ``tiny``."""
    from text_bundles import STRUCTURE, export_text_bundle

    directory, options = tmp_path_factory.mktemp("int8"), {"quantize": "int8", "kernels": "auto"}
    made = export_text_bundle(checkpoint(STRUCTURE), directory, **options)
    return made.rename(made.with_name("tiny"))


@pytest.fixture(scope="session")
def chat_bundle(
    checkpoint: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Return a read-only bundle with a byte tokenizer and a chat template."""
    from text_bundles import STRUCTURE, export_chat_bundle

    return export_chat_bundle(checkpoint(STRUCTURE), tmp_path_factory.mktemp("chat"))
