"""Make a tiny checkpoint and bundle with a byte tokenizer, for tests of texts."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from skipdec.exporter.checkpoint.checkpoint import open_checkpoint
from skipdec.exporter.checkpoint.tokenizer import byte_level_tokenizer
from skipdec.exporter.config import CheckpointSource, ExportConfig
from skipdec.exporter.pipeline.exporting import export

STRUCTURE = "no_bias"  # of tiny_models; its vocabulary holds every byte


def copy_with_tokenizer(checkpoint: Path, directory: Path) -> Path:
    """Copy ``checkpoint``, of STRUCTURE, to a new ``directory``, with a byte tokenizer."""
    shutil.copytree(checkpoint, directory)
    tokenizer = byte_level_tokenizer(open_checkpoint(CheckpointSource(model=str(directory))).model)
    assert tokenizer is not None
    (directory / "tokenizer.json").write_bytes(tokenizer)
    return directory


def add_unembedded_tokens(checkpoint: Path) -> None:
    """Add the tokens <0> to <299>, the last of which exceed the embedding of STRUCTURE."""
    path = str(checkpoint / "tokenizer.json")
    tokenizer = Tokenizer.from_file(path)
    tokenizer.add_tokens([f"<{index}>" for index in range(300)])
    tokenizer.save(path)


def export_text_bundle(checkpoint: Path, directory: Path, **options: Any) -> Path:  # noqa: ANN401
    """Export ``checkpoint``, of STRUCTURE, with a byte tokenizer.

    ``options`` are fields of `ExportConfig`, by default schedule 2x with horizon 4.
    """
    source = copy_with_tokenizer(checkpoint, directory / "checkpoint")
    output = directory / "bundle"
    chosen = {"schedule": "2x:horizon=4"} | options
    export(ExportConfig(model=str(source), output=output, verify=False, **chosen))
    return output


CHAT_TEMPLATE = (
    "{% for m in messages %}{{ '<s>' if loop.first }}{{ m.role }}: {{ m.content }}</s>{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


def export_chat_bundle(
    checkpoint: Path,
    directory: Path,
    *,
    template: str = CHAT_TEMPLATE,
    **options: Any,  # noqa: ANN401
) -> Path:
    """Export ``checkpoint`` as `export_text_bundle` does, with a chat template."""
    source = copy_with_tokenizer(checkpoint, directory / "checkpoint")
    (source / "chat_template.jinja").write_text(template)
    output = directory / "chat.skipdec"
    export(ExportConfig(model=str(source), output=output, verify=False, **options))
    return output


def export_with_kernels(
    checkpoint: Path, directory: Path, quantize: str = "int8", **options: int
) -> Path:
    """Export ``checkpoint``, of STRUCTURE, with a byte tokenizer, for skipdec's kernels."""
    return export_text_bundle(
        checkpoint, directory, quantize=quantize, kernels="skipdec", schedule=None, **options
    )
