"""``skipdec serve``: bundles behind OpenAI's completions protocol."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from pydantic import Field

from ...engines.checking import MemorySize, Option
from ...engines.host.extras import require_extra
from ...engines.host.options import from_options
from ..serving.config import ServiceConfig
from ..serving.http.config import ServerConfig
from .options import EngineOptions

if TYPE_CHECKING:
    from ..generator import Generator

_RUNNING = Option(panel="Running")

_EXAMPLES = """
[bold]Examples[/bold]

skipdec serve opt-1.3b.skipdec

skipdec serve opt-1.3b.skipdec --schedule 2x --allow-schedule 2x --allow-schedule 4x

skipdec serve small=opt-125m-int8 large=opt-1.3b-int8 --host 0.0.0.0 --api-key-file keys.txt

Clients: POST /v1/completions as OpenAI's, GET /v1/models, /v1/schedules, /health/live,
/health/ready, /metrics, /version. SIGTERM and Ctrl-C let running texts end; a second one does not.

Values in round brackets are the defaults.
"""


class ServeOptions(EngineOptions):
    """What ``skipdec serve`` was asked to do."""

    bundles: Annotated[tuple[str, ...], Option(metavar="BUNDLE...", is_argument=True)] = Field(
        min_length=1, description="bundles' directories, or NAME=DIRECTORY"
    )
    schedule: Annotated[str | None, _RUNNING] = Field(
        default=None, description="of requests that ask for none (bundle's own)"
    )
    max_batch_size: Annotated[int, _RUNNING] = Field(
        default=8, ge=1, description="most completions at once, of each bundle"
    )
    kv_memory: Annotated[MemorySize | None, _RUNNING] = Field(
        default=None, description="most memory of KV caches, of each bundle (half of what is left)"
    )
    raw_prompt: Annotated[bool, _RUNNING] = Field(
        default=False, description="without the template that the model was tuned with"
    )
    server: Annotated[ServerConfig, Option(panel="Server")] = ServerConfig()
    service: Annotated[ServiceConfig, Option(panel="Limits")] = ServiceConfig()

    def open_generator(self, path: Path) -> Generator:
        """Load the engines of a bundle; all share one thread pool."""
        return self.open(
            path,
            schedule=self.schedule,
            max_batch_size=self.max_batch_size,
            kv_memory=self.kv_memory,
            raw_prompts=self.raw_prompt,
        )


def register(app: typer.Typer) -> None:
    """Add ``serve`` to ``app``."""
    app.command("serve", epilog=_EXAMPLES)(serve)


@from_options
def serve(options: ServeOptions) -> None:
    """Serve bundles over HTTP, many requests in one running batch, each at its own depth."""
    require_extra("serve", "skipdec serve")
    from ..scheduling.admission import parse_admission
    from ..serving.http.logs import log_to_stderr
    from ..serving.http.server import HttpServer, ServedBundle

    parse_admission(options.service.admission)
    log_to_stderr(options.server.log_format)
    server = HttpServer(
        [ServedBundle.parse(text) for text in options.bundles],
        options.open_generator,
        options.server,
        options.service,
    )
    if not server.run():
        # A thread loads a bundle and can't be stopped; nothing was accepted, nothing is written.
        sys.stderr.flush()
        os._exit(0)
