"""Embedding tables of quantised bundles keep the checkpoint's 16 bits exactly."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
import torch
from tiny_models import tiny_model

from skipdec import Generator
from skipdec.engines.bundle import EngineBundle
from skipdec.engines.kernels.library import find_library
from skipdec.exporter.config import ExportConfig
from skipdec.exporter.pipeline.exporting import export

pytestmark = pytest.mark.skipif(find_library() is None, reason="the kernels are not compiled")
TOKENS = [3, 5, 7, 9, 11, 13, 15, 17]


def exported_from(model: torch.nn.Module, directory: Path) -> Path:
    model.save_pretrained(directory / "model")
    output = directory / "bundle"
    config = {"quantize": "int8", "kv_dtype": "float32", "kernels": "skipdec", "verify": False}
    export(ExportConfig(model=str(directory / "model"), output=output, **config))
    return output


def table_type(bundle: Path) -> str:
    (graph,) = bundle.rglob("embed.onnx")
    initializers = onnx.load(graph, load_external_data=False).graph.initializer
    (table,) = (each for each in initializers if each.name == "embed_tokens.weight")
    return onnx.TensorProto.DataType.Name(table.data_type)


def logprobs(bundle: Path) -> list[float]:
    with Generator.open(bundle, threads=1) as generator:
        return list(generator.score([TOKENS[:1]], [TOKENS[1:]])[0].logprobs)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_embedding_tables_keep_the_type_of_the_checkpoint(dtype: str, tmp_path: Path) -> None:
    model = tiny_model("llama").to(getattr(torch, dtype))
    narrow = exported_from(model, tmp_path / "narrow")
    wide = exported_from(model.float(), tmp_path / "wide")
    assert EngineBundle.open(narrow).manifest.precision.table_dtype == dtype
    assert EngineBundle.open(wide).manifest.precision.table_dtype is None
    assert (table_type(narrow), table_type(wide)) == (dtype.upper(), "FLOAT")
    assert logprobs(narrow) == logprobs(wide)
