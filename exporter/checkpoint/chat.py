"""The chat template of a checkpoint, and the special tokens that it writes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...engines.bundle.place import CHAT_TEMPLATE_NAME
from ...engines.documents import read_file, read_json
from ...engines.errors import BundleError, CheckpointError
from ...engines.manifest import ChatFile, ModelSpec
from ...runtime.tokens.chat import MAX_TEMPLATE_BYTES, ChatTemplate
from ...runtime.tokens.tokenizer import Tokenizer

CHAT_FILES = (CHAT_TEMPLATE_NAME, "tokenizer_config.json", "chat_template.json")
_DEFAULT = "default"  # the name of the template that chats without tools use


@dataclass(frozen=True)
class CheckpointChat:
    """A chat template's content, UTF-8, and what a manifest says of it."""

    content: bytes
    described: ChatFile


def read_chat(directory: Path, model: ModelSpec, tokenizer_json: bytes) -> CheckpointChat | None:
    """Return the chat template of the checkpoint in ``directory``; None if it has none.

    It is the file chat_template.jinja, else the text ``chat_template`` of tokenizer_config.json,
    else that of chat_template.json. Of several named templates it is the one called "default".
    Raises CheckpointError for a file that can't be read, or a template that can't be compiled.
    """
    found = _template(directory)
    if found is None:
        return None
    path, source = found
    tokenizer = Tokenizer.parse(tokenizer_json, str(directory / "tokenizer.json"))
    described = ChatFile(
        path=CHAT_TEMPLATE_NAME,
        bos_token=_special(directory, "bos_token", model.bos_token_id, tokenizer),
        eos_token=_special(directory, "eos_token", model.eos_token_id, tokenizer),
    )
    try:
        ChatTemplate.parse(source.encode(), described, tokenizer, str(path)).require_compiled()
    except BundleError as error:
        raise CheckpointError(str(path), *error.problems) from error
    return CheckpointChat(source.encode(), described)


def parse_tokenizer(document: bytes, chat: CheckpointChat | None, name: str) -> Tokenizer:
    """Return a checkpoint's tokenizer as the runtime reads it, with its chat template.

    ``document`` holds tokenizer.json. Raises BundleError for one that is damaged.
    """
    tokenizer = Tokenizer.parse(document, f"tokenizer of {name}")
    if chat is not None:
        tokenizer.chat = ChatTemplate.parse(
            chat.content, chat.described, tokenizer, f"chat template of {name}"
        )
    return tokenizer


def template_file(directory: Path) -> Path | None:
    """Return the file that has the chat template of the checkpoint in ``directory``, if any."""
    found = _template(directory)
    return None if found is None else found[0]


def _template(directory: Path) -> tuple[Path, str] | None:
    path = directory / CHAT_TEMPLATE_NAME
    if path.is_file():
        content = read_file(path, CheckpointError, limit=MAX_TEMPLATE_BYTES)
        try:
            return path, content.decode()
        except UnicodeDecodeError as error:
            raise CheckpointError(str(path), f"is not UTF-8 at byte {error.start}") from error
    for name in CHAT_FILES[1:]:
        path = directory / name
        template = _object(path).get("chat_template") if path.is_file() else None
        if isinstance(template, list):
            named = (each for each in template if isinstance(each, dict))
            template = next(
                (each.get("template") for each in named if each.get("name") == _DEFAULT), None
            )
        if isinstance(template, str):
            return path, template
    return None


def _special(directory: Path, name: str, token_id: int | None, tokenizer: Tokenizer) -> str | None:
    """Return the text of a special token, by tokenizer_config.json, else by its id."""
    path = directory / "tokenizer_config.json"
    config = _object(path) if path.is_file() else {}
    given = config.get(name)
    text = given.get("content") if isinstance(given, dict) else given
    if isinstance(text, str):
        return text
    if name in config or token_id is None or not tokenizer.is_token(token_id):
        return None
    return tokenizer.token_text(token_id)


def _object(path: Path) -> Mapping[str, Any]:
    document = read_json(path, CheckpointError)
    if not isinstance(document, dict):
        raise CheckpointError(str(path), f"is {json.dumps(document):.80}; expected an object")
    return document
