"""Options of `skipdec serve`: its address, limits on clients, logs and shutdown."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from ....engines.checking import MemorySize, Option, ValidatedConfig
from ...schedule.text import document_text, names_file, read_document
from ...tokens.chat import SpecialTokens

MAX_PROMPTS, MAX_COMPLETIONS = 64, 16  # per request; per prompt
MAX_STOPS, MAX_STOP_CHARACTERS = 16, 256
MAX_ENTRIES = 1024  # of a field other than prompt or messages, e.g. stop_token_ids
MAX_LOGPROBS = 20
MAX_REQUEST_LOGPROBS = 2**17  # over all prompts of a request: an answer of about 4 MB
ANY_SCHEDULE = "any"


def _read_if_file(schedule: str) -> str:
    return document_text(read_document(schedule)) if names_file(schedule) else schedule


class ServerConfig(ValidatedConfig):
    """Address, keys, limits and logs of an HTTP server; times are seconds, sizes bytes."""

    host: Annotated[str, Option()] = Field(
        default="127.0.0.1", min_length=1, description="address to listen on"
    )
    port: Annotated[int, Option()] = Field(
        default=8000, ge=0, le=65535, description="0: a free port"
    )
    schedules: Annotated[
        tuple[Annotated[str, AfterValidator(_read_if_file)], ...],
        Option("--allow-schedule", metavar="SCHEDULE"),
    ] = Field(
        default=(),
        description="allow requests this schedule besides full and the bundle's own; may be "
        "repeated; any allows all",
    )
    api_key_file: Annotated[Path | None, Option(metavar="FILE")] = Field(
        default=None,
        description="file of API keys, one per line; /v1 requires one of them ($SKIPDEC_API_KEY)",
    )
    protect_metrics: Annotated[bool, Option()] = Field(
        default=False, description="/metrics requires a key, too"
    )
    special_tokens: Annotated[SpecialTokens, Option()] = Field(
        default="escape",
        description="how to encode special tokens that a chat's message spells: as ordinary text, "
        "or as the tokens",
    )
    log_format: Annotated[Literal["text", "json"], Option()] = Field(
        default="text",
        description="format of the log on stderr: one line per request, never with its prompt",
    )
    max_body: Annotated[MemorySize, Option()] = Field(
        default=1 << 20, ge=1024, description="maximum size of a request's body"
    )
    read_timeout: Annotated[float, Option()] = Field(
        default=30.0, gt=0, description="seconds for a request's body"
    )
    shutdown_timeout: Annotated[float, Option()] = Field(
        default=30.0, ge=0, description="seconds for running requests after SIGTERM"
    )
    hang_timeout: Annotated[float, Option()] = Field(
        default=60.0, gt=0, description="seconds in one step after which /health/live is 500"
    )
