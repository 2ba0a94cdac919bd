"""The tokenizer of a checkpoint as a single ``tokenizer.json``."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import tokenizers

from ...engines.documents import open_regular, read_file, read_object
from ...engines.errors import CheckpointError
from ...engines.host.installation import is_installed, require_extra
from ...engines.host.worker import Limits, Worker, WorkerCrashError
from ...engines.manifest import MAX_END_TOKENS, ModelSpec
from ...runtime.tokens.tokenizer import MAX_TOKENIZER_BYTES, Tokenizer
from .tokenizer_worker import REMEDY, TEXTS, ReadByTransformers, check, convert, encode

_Report = TypeVar("_Report")

_TIKTOKEN_LINE = re.compile(rb"[A-Za-z0-9+/]+=* [0-9]+\s")  # SentencePiece's files are binary
_WORKER = f"{__package__}.tokenizer_worker"
_ENVIRONMENT = {
    "RUST_BACKTRACE": "0",
    "TOKENIZERS_PARALLELISM": "false",
    "TRANSFORMERS_VERBOSITY": "error",
}
_READING = Limits(seconds=20, memory=4 << 30, wall=180)  # the largest tokenizers take 3 s
_TRANSFORMERS = Limits(seconds=300, memory=8 << 30, wall=900)
_SPECIAL_TOKENS = ("<s>", "<pad>", "</s>", "<unk>")

TOKEN_FILES = ("tokenizer_config.json", "special_tokens_map.json")
"""Files that name special tokens; the first takes precedence."""

TEXT_FILES = (
    *TOKEN_FILES,
    "added_tokens.json",
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
)
"""Text-related files besides tokenizer.json, copied unchanged to derived checkpoints."""


def read_tokenizer(directory: Path) -> bytes | None:
    """Return the content of tokenizer.json; None if the checkpoint has no tokenizer files.

    If there is only ``tokenizer.model``, or ``vocab.json`` and ``merges.txt`` as in the original
    OPT repositories, transformers converts them and adds the tokens that the model expects around a
    text. Raises CheckpointError for a file that can't be read, and if the package that reads
    ``tokenizer.model`` is missing.
    """
    path = directory / "tokenizer.json"
    if path.is_file():
        content = read_file(path, CheckpointError, limit=MAX_TOKENIZER_BYTES)
        _in_limits(check, path, _READING)
        return content
    model = directory / "tokenizer.model"
    if model.is_file():
        _require_reader(model)
    elif not all((directory / name).is_file() for name in ("vocab.json", "merges.txt")):
        return None
    require_extra("export", "converting a tokenizer")
    return _in_limits(convert, directory, _TRANSFORMERS).encode()


def with_tokenizer_end(model: ModelSpec, directory: Path, tokenizer_json: bytes) -> ModelSpec:
    """Return ``model`` with the tokenizer's ``eos_token`` among the tokens that end a text.

    The end of turn of a chat model may be named only in tokenizer_config.json (or in the older
    special_tokens_map.json), while config.json has the end of text. vLLM stops there, too. Raises
    CheckpointError for a file that can't be read.
    """
    for name in TOKEN_FILES:
        path = directory / name
        document = read_object(path, CheckpointError) if path.is_file() else {}
        text = text_of(document.get("eos_token"))
        if text is not None:
            break
    else:
        return model
    token_id = tokenizers.Tokenizer.from_str(tokenizer_json.decode()).token_to_id(text)
    ends = model.end_token_ids
    if token_id is None or token_id in ends or token_id >= model.vocab_size:
        return model
    ends = (*ends[: MAX_END_TOKENS - 1], token_id)
    return model.model_copy(update={"eos_token_id": ends[0], "end_token_ids": ends})


def text_of(token: object) -> str | None:
    """Return the text of a token that a configuration gives as an object or as text."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else None


def tokenizer_warning(own: Tokenizer, theirs: ReadByTransformers) -> str | None:
    """Return a warning if transformers and ``own`` encode TEXTS differently.

    Its ``AutoTokenizer`` also follows tokenizer_config.json, whose ``add_bos_token``, for example,
    may contradict tokenizer.json.
    """
    for text, expected in zip(TEXTS, theirs.ids, strict=False):
        if (ids := own.encode(text)) != expected:
            return (
                f"tokenizer.json encodes {text!r} as {ids}, but transformers' AutoTokenizer as "
                f"{expected}; the bundle uses tokenizer.json: if that is wrong, replace it by "
                "the one that AutoTokenizer's save_pretrained writes"
            )
    return None


def vocabulary_warning(tokenizer: Tokenizer, vocab_size: int) -> str | None:
    """Return a warning if the tokenizer has tokens beyond the rows of the model's embedding."""
    beyond = tokenizer.tokens_from(vocab_size)
    if not beyond:
        return None
    (first, token), count = beyond[0], len(beyond)
    return (
        f"the tokenizer has {count:,} tokens beyond the {vocab_size:,} rows of the model's "
        f"embedding, from {first} ({token!r:.80}) on: texts with one of them can't be read; use "
        "the tokenizer that the model was trained with, or resize_token_embeddings and train"
    )


def read_by_transformers(directory: Path, texts: Sequence[str]) -> ReadByTransformers:
    """Return what transformers makes of a checkpoint's tokenizer files, in a process with limits.

    Raises CheckpointError if it can't read them.
    """
    request = json.dumps(list(texts))
    return ReadByTransformers(**_in_limits(encode, directory, _TRANSFORMERS, request))


def _in_limits(
    operation: Callable[[Path, str], _Report], path: Path, limits: Limits, request: str = ""
) -> _Report:
    """Return the result of the worker's ``operation`` on ``path``, run in a process with limits.

    Raises CheckpointError if the process reports an error, dies or exceeds a limit.
    """
    arguments = [operation.__name__, str(path)]
    try:
        with Worker(_WORKER, arguments, _ENVIRONMENT, limits) as worker:
            report: _Report = worker.run(request, lambda _: None)
    except WorkerCrashError as crash:
        raise CheckpointError(
            str(path),
            f"can't be used: the process that tried it {crash.reason}; {REMEDY}",
        ) from None
    return report


def _require_reader(path: Path) -> None:
    """Raise CheckpointError if transformers needs a package to read ``path`` that is missing."""
    with open_regular(path) as file:
        is_tiktoken = _TIKTOKEN_LINE.match(file.read(1024)) is not None
    packages = ("tiktoken",) if is_tiktoken else ("sentencepiece", "google.protobuf")
    names = [package for package in packages if not is_installed(package)]
    if names:
        missing = " ".join(name.rpartition(".")[2] for name in names)
        raise CheckpointError(
            str(path),
            f"needs {missing} to be converted; run: pip install {missing}, or put a tokenizer.json "
            "beside it",
        )


def byte_level_tokenizer(model: ModelSpec) -> bytes | None:
    """Return a tokenizer.json with one token per byte, generated for dummy weights.

    Ids are OPT's: ``<s>`` 0, ``<pad>`` 1, ``</s>`` 2, ``<unk>`` 3, then the 256 bytes. The model's
    ``bos_token_id``, if among them, precedes every text. Returns None if the vocabulary is smaller
    than 260.
    """
    from tokenizers import decoders, models, pre_tokenizers, processors

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    if model.vocab_size < len(_SPECIAL_TOKENS) + len(alphabet):
        return None
    vocab = {token: index for index, token in enumerate((*_SPECIAL_TOKENS, *alphabet))}
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[]))
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
