"""The tokenizer of a checkpoint as a single ``tokenizer.json``."""

from __future__ import annotations

import json
from pathlib import Path

from ...engines.documents import read_file
from ...engines.errors import CheckpointError
from ...engines.host.installation import require_extra
from ...engines.manifest import ModelSpec

_MAX_BYTES = 1 << 28  # bytes of a tokenizer.json
_SPECIAL_TOKENS = ("<s>", "<pad>", "</s>", "<unk>")

TEXT_FILES = (
    "tokenizer_config.json",
    "special_tokens_map.json",
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "generation_config.json",
)
"""Files about texts beside tokenizer.json that a checkpoint made of another gets unchanged."""


def read_tokenizer(directory: Path) -> bytes | None:
    """Return the content of tokenizer.json; None if the checkpoint has no tokenizer files.

    For a checkpoint with only ``vocab.json`` and ``merges.txt``, such as the original OPT
    repositories, transformers converts them and adds the ``</s>`` that OPT puts before every text;
    so it does with ``tokenizer.model``, for which it needs the package sentencepiece. Raises
    CheckpointError for a file that can't be read.
    """
    path = directory / "tokenizer.json"
    if path.is_file():
        return _checked(read_file(path, CheckpointError, limit=_MAX_BYTES), path)
    for names in (("vocab.json", "merges.txt"), ("tokenizer.model",)):
        if all((directory / name).is_file() for name in names):
            return _converted(directory, " and ".join(names))
    return None


def _checked(content: bytes, path: Path) -> bytes:
    from tokenizers import Tokenizer

    try:
        Tokenizer.from_str(content.decode())
    except Exception as error:  # tokenizers raises nothing narrower
        raise CheckpointError(str(path), f"can't be read ({error})") from error
    return content


def _converted(directory: Path, files: str) -> bytes:
    require_extra("export", f"converting {files}")
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(directory, local_files_only=True)
    except (ValueError, OSError) as error:
        raise CheckpointError(
            str(directory),
            f"{files} can't be converted ({error}); add a tokenizer.json, as "
            "AutoTokenizer.from_pretrained(...).save_pretrained writes it",
        ) from error
    text: str = tokenizer.backend_tokenizer.to_str(pretty=False)
    return text.encode()


def byte_level_tokenizer(model: ModelSpec) -> bytes | None:
    """Return a tokenizer.json with one token per byte, generated for dummy weights.

    Ids are OPT's: ``<s>`` 0, ``<pad>`` 1, ``</s>`` 2, ``<unk>`` 3, then the 256 bytes. The model's
    ``bos_token_id`` is put before every text if it is one of those. Returns None if the vocabulary
    is smaller than 260.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    if model.vocab_size < len(_SPECIAL_TOKENS) + len(alphabet):
        return None
    vocab = {token: index for index, token in enumerate((*_SPECIAL_TOKENS, *alphabet))}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.add_special_tokens(list(_SPECIAL_TOKENS))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    bos = model.bos_token_id
    if bos is not None and bos < len(_SPECIAL_TOKENS):
        token = _SPECIAL_TOKENS[bos]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{token} $A", pair=f"{token} $A {token} $B", special_tokens=[(token, bos)]
        )
    document = json.loads(tokenizer.to_str())
    return json.dumps(document, sort_keys=True, ensure_ascii=False).encode()
