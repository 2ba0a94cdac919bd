"""The chat template of a checkpoint, and the special tokens that it writes."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from ...engines.bundle.place import CHAT_TEMPLATE_NAME
from ...engines.documents import read_file, read_object
from ...engines.errors import BundleError, CheckpointError, UsageError, shown
from ...engines.manifest import ChatFile, ModelSpec
from ...runtime.tokens.chat import MAX_TEMPLATE_BYTES, ChatTemplate
from ...runtime.tokens.tokenizer import Tokenizer
from .tokenizer import TOKEN_FILES, read_by_transformers, text_of, tokenizer_warning
from .tokenizer_worker import TEXTS, ReadByTransformers

CHAT_FILES = (CHAT_TEMPLATE_NAME, "tokenizer_config.json", "chat_template.json")
SAMPLE = ({"role": "user", "content": "What is the capital of France?"},)
"""The chat that an export renders."""

_DEFAULT = "default"  # the name of the template that chats without tools use
_TOKEN_NAMES = tuple(f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"))
_ADDITIONAL = "additional_special_tokens"
_ADDITIONAL_NAMES = (_ADDITIONAL, "extra_special_tokens")  # in transformers 4, and 5


@dataclass(frozen=True)
class CheckpointChat:
    """A chat template's content, UTF-8, and its description in a manifest."""

    content: bytes
    described: ChatFile


def read_chat(directory: Path, model: ModelSpec, tokenizer_json: bytes) -> CheckpointChat | None:
    """Return the chat template of the checkpoint in ``directory``; None if it has none.

    The template is the file chat_template.jinja, else the text ``chat_template`` of
    tokenizer_config.json, else that of chat_template.json. Of several named templates, the one
    called "default" is used. An empty template is none. Raises CheckpointError for a file that
    can't be read, and for a template that is too long or can't render a chat.
    """
    found = _template(directory)
    if found is None:
        return None
    path, source = found
    tokenizer = Tokenizer.parse(tokenizer_json, str(directory / "tokenizer.json"))
    described = ChatFile(
        path=CHAT_TEMPLATE_NAME, special_tokens=_special_tokens(directory, model, tokenizer)
    )
    chat = CheckpointChat(source.encode(), described)
    with closing(_chat_template(chat, tokenizer, str(path))) as template:
        try:
            template.encode(SAMPLE)
        except BundleError as error:
            raise CheckpointError(str(path), *error.problems) from error
        except UsageError as error:
            about = f"renders no chat: {error.subject} "
            problems = (f"{about}{problem}; correct or remove it" for problem in error.problems)
            raise CheckpointError(str(path), *problems) from error
    return chat


def _chat_template(chat: CheckpointChat, tokenizer: Tokenizer, subject: str) -> ChatTemplate:
    return ChatTemplate.parse(chat.content, chat.described, tokenizer, subject)


def transformers_warnings(
    directory: Path, tokenizer: Tokenizer, chat: CheckpointChat | None
) -> list[str]:
    """Return warnings if transformers encodes texts, or chats rendered by ``chat``, differently.

    ``tokenizer`` has that template. transformers' ``apply_chat_template`` would run it without
    limits, so only its inputs and the tokens of the rendered text are compared. If transformers
    itself converted the tokenizer, texts are not compared.
    """
    is_own = (directory / "tokenizer.json").is_file()
    made = None if tokenizer.chat is None else tokenizer.chat.encode(SAMPLE)
    if not is_own and made is None:
        return []
    texts = TEXTS if made is None else (*TEXTS, made.text)
    try:
        theirs = read_by_transformers(directory, texts)
    except CheckpointError as error:
        return [f"the tokenizer was not compared with transformers: {error}"]
    warnings = [tokenizer_warning(tokenizer, theirs)] if is_own else []
    if chat is not None and made is not None:
        warnings.append(_chat_warning(tokenizer, chat, list(made.token_ids), theirs))
    return [warning for warning in warnings if warning is not None]


def _chat_warning(
    tokenizer: Tokenizer, chat: CheckpointChat, own_ids: list[int], theirs: ReadByTransformers
) -> str | None:
    """Return a warning if transformers encodes the chat, the last of its texts, differently."""
    assert tokenizer.chat is not None
    subject = "a chat becomes other tokens than by transformers' apply_chat_template:"
    remedy = "if that is wrong, correct tokenizer_config.json"
    if theirs.chat_template != chat.content.decode():
        return f"{subject} that takes another chat template; {remedy}"
    for name in sorted(tokenizer.chat.variables & {*_TOKEN_NAMES}):
        own, other = chat.described.special_tokens.get(name), theirs.special_tokens.get(name)
        if own != other:
            return f"{subject} {name} is {own!r}, there {other!r}; {remedy}"
    ids = theirs.plain_ids[-1]
    return None if ids == own_ids else f"{subject} {own_ids}, there {ids}; {remedy}"


def parse_tokenizer(document: bytes, chat: CheckpointChat | None, name: str) -> Tokenizer:
    """Return a checkpoint's tokenizer and chat template as the runtime reads them.

    ``document`` is the content of tokenizer.json. Raises BundleError if it is damaged.
    """
    tokenizer = Tokenizer.parse(document, f"tokenizer of {name}")
    if chat is not None:
        tokenizer.chat = _chat_template(chat, tokenizer, f"chat template of {name}")
    return tokenizer


def template_file(directory: Path) -> Path | None:
    """Return the file that contains the chat template of the checkpoint, if any."""
    found = _template(directory)
    return None if found is None else found[0]


def _template(directory: Path) -> tuple[Path, str] | None:
    path = directory / CHAT_TEMPLATE_NAME
    if path.is_file():
        content = read_file(path, CheckpointError, limit=MAX_TEMPLATE_BYTES)
        try:
            text = content.decode()
        except UnicodeDecodeError as error:
            raise CheckpointError(str(path), f"is not UTF-8 at byte {error.start}") from error
        return (path, text) if text else None  # an empty one is none, as in transformers
    for name in CHAT_FILES[1:]:
        path = directory / name
        template = (
            read_object(path, CheckpointError).get("chat_template") if path.is_file() else None
        )
        if isinstance(template, list):
            named = (each for each in template if isinstance(each, dict))
            template = next(
                (each.get("template") for each in named if each.get("name") == _DEFAULT), None
            )
        if template in ("", None):
            continue
        if isinstance(template, str):
            if len(template.encode(errors="replace")) > MAX_TEMPLATE_BYTES:
                raise CheckpointError(
                    str(path),
                    f"has a chat template of more than {MAX_TEMPLATE_BYTES:,} bytes, the limit; "
                    "shorten or remove it",
                )
            return path, template
        raise CheckpointError(
            str(path),
            f"has the chat template {shown(template)}; allowed: a text, or a list with "
            'one named "default"; correct or remove it',
        )
    return None


def _special_tokens(
    directory: Path, model: ModelSpec, tokenizer: Tokenizer
) -> dict[str, str | list[str]]:
    """Return the special tokens by their names in templates.

    They come from the tokenizer's configuration. If it does not mention the tokens that begin and
    end a text, these are the model's.
    """
    ids = {"bos_token": model.bos_token_id, "eos_token": model.eos_token_id}
    tokens: dict[str, str | list[str]] = {
        name: tokenizer.token_text(token_id)
        for name, token_id in ids.items()
        if token_id is not None and tokenizer.is_token(token_id)
    }
    for file in reversed(TOKEN_FILES):  # the first file takes precedence
        path = directory / file
        config = read_object(path, CheckpointError) if path.is_file() else {}
        for name in _TOKEN_NAMES:
            if name in config:
                text = text_of(config[name])
                tokens.pop(name, None)
                tokens |= {} if text is None else {name: text}
        for name in _ADDITIONAL_NAMES:
            if isinstance(listed := config.get(name), list):
                texts = map(text_of, listed)
                tokens[_ADDITIONAL] = [text for text in texts if text is not None]
    return tokens
