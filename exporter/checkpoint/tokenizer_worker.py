"""The process in which libraries first read a checkpoint's tokenizer; `tokenizer.py` starts it.

``python -m … OPERATION PATH``, with a request on standard input. A bad tokenizer.json can make the
libraries abort or take unlimited time and memory. This process therefore has limits, and however
it ends, its failure becomes an error about the checkpoint.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ...engines.errors import BundleError, CheckpointError, SkipDecError
from ...engines.host.worker import WorkerLines
from .foreign import library_reads

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

TEXTS = (
    *("The tower is 324 metres tall.", " two  blanks", "name[Cotto], eatType[pub]"),
    *("line 1\n\nline 2\t1,234,567", "naïve cafe\u0301 東京 👩\u200d👧", "DON'T we'll"),
)
"""Short texts with which every tokenizer is tried."""

REMEDY = "use the tokenizer files of the original model"


class ReadByTransformers(NamedTuple):
    """A checkpoint's tokenizer as transformers reads it, and the token ids of some texts.

    ``plain_ids`` are without special tokens around the texts.
    """

    ids: list[list[int]]
    plain_ids: list[list[int]]
    chat_template: str | None
    special_tokens: dict[str, str]


def check(path: Path, _request: str) -> None:
    """Read the tokenizer.json at ``path`` as a bundle's; encode and decode TEXTS."""
    from ...runtime.tokens.tokenizer import Tokenizer

    try:
        with library_reads(str(path), "is not a tokenizer", REMEDY):
            tokenizer = Tokenizer.parse(path.read_bytes(), str(path), remedy=REMEDY)
            for text in TEXTS:
                tokenizer.decode(tokenizer.encode(text))
    except BundleError as error:
        raise CheckpointError(str(path), *error.problems) from error


def convert(directory: Path, _request: str) -> str:
    """Return a tokenizer.json made from the other tokenizer files in ``directory``."""
    with library_reads(
        str(directory),
        "has tokenizer files that can't be converted",
        "add a tokenizer.json, as AutoTokenizer.from_pretrained(...).save_pretrained writes it",
    ):
        text: str = _auto_tokenizer(directory).backend_tokenizer.to_str(pretty=False)
    return text


def encode(directory: Path, request: str) -> dict[str, Any]:
    """Return the fields of a ReadByTransformers for ``request``, a JSON list of texts."""
    texts: list[str] = json.loads(request)
    with library_reads(str(directory), "can't be read by transformers"):
        tokenizer = _auto_tokenizer(directory)
        template = tokenizer.get_chat_template() if tokenizer.chat_template else None
        return ReadByTransformers(
            ids=[list(tokenizer(text)["input_ids"]) for text in texts],
            plain_ids=[
                list(tokenizer(text, add_special_tokens=False)["input_ids"]) for text in texts
            ],
            chat_template=template,
            special_tokens={
                name: token
                for name, token in tokenizer.special_tokens_map.items()
                if isinstance(token, str)
            },
        )._asdict()


OPERATIONS: Mapping[str, Callable[[Path, str], Any]] = {
    operation.__name__: operation for operation in (check, convert, encode)
}


def _auto_tokenizer(directory: Path) -> PreTrainedTokenizerBase:
    sys.modules["torch"] = None  # type: ignore[assignment]  # slow to import, and unused
    from transformers import AutoTokenizer

    tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
        directory, local_files_only=True, trust_remote_code=False
    )
    return tokenizer


def main() -> None:
    """Write what OPERATION returns for PATH, or its error."""
    lines = WorkerLines()
    operation, path = sys.argv[1:]
    try:
        report = OPERATIONS[operation](Path(path), sys.stdin.read())
    except SkipDecError as error:
        lines.write_error(error)
    else:
        lines.write("report", report)


if __name__ == "__main__":
    main()
