"""The tokenizer of a checkpoint as a single ``tokenizer.json``."""

from __future__ import annotations

import json
import re
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from ...engines.documents import read_file, read_json
from ...engines.errors import CheckpointError
from ...engines.host.installation import require_extra
from ...engines.manifest import MAX_END_TOKENS, ModelSpec

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_TIKTOKEN_LINE = re.compile(rb"[A-Za-z0-9+/]+=* [0-9]+\s")  # SentencePiece's files are binary
_COMPARED_TEXTS = (
    *("The tower is 324 metres tall.", " two  blanks", "name[Cotto], eatType[pub]"),
    *("line 1\n\nline 2\t1,234,567", "naïve cafe\u0301 東京 👩\u200d👧", "DON'T we'll"),
)
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

    For a checkpoint with only ``tokenizer.model``, or ``vocab.json`` and ``merges.txt`` such as the
    original OPT repositories, transformers converts them and adds the tokens that the model expects
    around a text. Raises CheckpointError for a file that can't be read, and for a
    ``tokenizer.model`` without the package that reads it.
    """
    path = directory / "tokenizer.json"
    if path.is_file():
        return _checked(read_file(path, CheckpointError, limit=_MAX_BYTES), path)
    if (model := directory / "tokenizer.model").is_file():
        _require_reader(model)
        return _converted(directory, "tokenizer.model")
    if all((directory / name).is_file() for name in ("vocab.json", "merges.txt")):
        return _converted(directory, "vocab.json and merges.txt")
    return None


def with_tokenizer_end(model: ModelSpec, directory: Path, tokenizer_json: bytes) -> ModelSpec:
    """Return ``model`` with the tokenizer's ``eos_token`` among the tokens that end a text.

    The end of turn of a chat model may be named in tokenizer_config.json only (or in the older
    special_tokens_map.json), beside config.json's end of text. vLLM stops there, too. Raises
    CheckpointError for a file that can't be read.
    """
    from tokenizers import Tokenizer

    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        document = read_json(path, CheckpointError) if (path := directory / name).is_file() else {}
        given = document.get("eos_token") if isinstance(document, dict) else None
        text = given.get("content") if isinstance(given, dict) else given
        if isinstance(text, str):
            break
    else:
        return model
    token_id = Tokenizer.from_str(tokenizer_json.decode()).token_to_id(text)
    ends = model.end_token_ids
    if token_id is None or token_id in ends or token_id >= model.vocab_size:
        return model
    ends = (*ends[: MAX_END_TOKENS - 1], token_id)
    return model.model_copy(update={"eos_token_id": ends[0], "end_token_ids": ends})


def tokenizer_warning(directory: Path, content: bytes) -> str | None:
    """Return a warning if transformers gives other token ids than ``content``, its tokenizer.json.

    Its ``AutoTokenizer`` also follows tokenizer_config.json, whose ``add_bos_token``, for example,
    may contradict the file.
    """
    from tokenizers import Tokenizer

    own = Tokenizer.from_str(content.decode())
    own.no_truncation()
    own.no_padding()
    try:
        other = _auto_tokenizer(directory)
        for text in _COMPARED_TEXTS:
            ids, expected = own.encode(text).ids, list(other(text)["input_ids"])
            if ids != expected:
                return (
                    f"tokenizer.json encodes {text!r} as {ids}, but transformers' AutoTokenizer as "
                    f"{expected}; the bundle uses tokenizer.json: if that is wrong, replace it by "
                    "the one that AutoTokenizer's save_pretrained writes"
                )
    except (AttributeError, ImportError, KeyError, OSError, TypeError, ValueError) as error:
        return f"tokenizer.json was not compared with transformers, which can't read it ({error})"
    return None


def _checked(content: bytes, path: Path) -> bytes:
    from tokenizers import Tokenizer

    try:
        Tokenizer.from_str(content.decode())
    except Exception as error:  # tokenizers raises nothing narrower
        raise CheckpointError(str(path), f"can't be read ({error})") from error
    return content


def _require_reader(path: Path) -> None:
    """Raise CheckpointError unless the package is installed that transformers reads ``path`` by."""
    with path.open("rb") as file:
        is_tiktoken = _TIKTOKEN_LINE.match(file.read(1024)) is not None
    packages = ("tiktoken",) if is_tiktoken else ("sentencepiece", "google.protobuf")
    names = [package for package in packages if not _is_installed(package)]
    if names:
        missing = " ".join(name.rpartition(".")[2] for name in names)
        raise CheckpointError(
            str(path),
            f"needs {missing} to be converted; run: pip install {missing}, or put a tokenizer.json "
            "beside it",
        )


def _is_installed(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:  # of the package's parent
        return False


def _auto_tokenizer(directory: Path) -> PreTrainedTokenizerBase:
    from transformers import AutoTokenizer

    tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
        directory, local_files_only=True, trust_remote_code=False
    )
    return tokenizer


def _converted(directory: Path, files: str) -> bytes:
    require_extra("export", f"converting {files}")
    try:
        tokenizer = _auto_tokenizer(directory)
    except (ValueError, OSError, ImportError) as error:
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
