"""``skipdec chat``: a conversation with the model of a bundle."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field

from ...engines.checking import Option, ValidatedConfig
from ...engines.host.options import from_options
from ..opening import ENGINE_OPTIONS, OpenOptions
from ..tokens.sampling import SamplingParams
from .checkpoints import ExportChoice, bundle_of
from .options import open_bundle

EXAMPLES = """
Examples:

\b
skipdec chat llama-1b.skipdec

\b
skipdec chat llama-1b.skipdec --system "Be brief." --draft own+lookup

\b
skipdec chat ./SmolLM2-135M-Instruct --dtype float16

Each line is a message. /help lists commands such as /reset, /schedule and /draft. Ctrl-C ends
an answer, Ctrl-D the conversation.

A checkpoint is exported once, into ~/.cache/skipdec.
"""


class ChatOptions(ValidatedConfig):
    """The options of ``skipdec chat``."""

    bundle: Annotated[Path, Option(metavar="MODEL", is_argument=True)] = Field(
        description="a bundle's directory, or a checkpoint: its directory, hub id or short name"
    )
    system: Annotated[str | None, Option(metavar="TEXT")] = Field(
        default=None, description="the system's message before the conversation"
    )
    quiet: Annotated[bool, Option("-q")] = Field(default=False, description="print answers only")
    opening: Annotated[
        OpenOptions, Option(only=(*ENGINE_OPTIONS, "schedule", "draft", "kv_memory"))
    ] = OpenOptions()
    export: Annotated[ExportChoice, Option()] = ExportChoice()
    params: Annotated[
        SamplingParams,
        Option(
            only=(
                *("max_tokens", "temperature", "top_k", "top_p", "min_p", "repetition_penalty"),
                *("presence_penalty", "frequency_penalty", "seed", "stop"),
            ),
        ),
    ] = SamplingParams()


@from_options
def chat(options: ChatOptions) -> None:
    """Talk with a model: answers appear as they are written and depend on all earlier messages."""
    from ...engines.host.progress import ConsoleProgress
    from .conversation import Conversation

    path = bundle_of(options.bundle, options.export, quiet=options.quiet)
    with ConsoleProgress(quiet=options.quiet) as events:
        events.stage("loading")
        generator = open_bundle(path, options.opening.updated(max_batch_size=1))
    with generator:
        Conversation(generator, options.params, system=options.system, quiet=options.quiet).run()
