"""``skipdec serve``: bundles behind OpenAI's completions protocol."""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from pydantic import Field

from ...engines.checking import MemorySize, Option
from ...engines.host.installation import require_extra
from ...engines.host.options import from_options
from ..serving.config import ServiceConfig
from ..serving.http.config import ServerConfig
from ..serving.process.restarts import RestartPolicy
from .options import EngineOptions

if TYPE_CHECKING:
    from ..serving.http.server import ServedBundle
    from ..serving.process.settings import WorkerSettings

_RUNNING = Option(panel="Running")
_SWITCH_SECONDS = 0.001

_EXAMPLES = """
[bold]Examples[/bold]

skipdec serve opt-1.3b.skipdec

skipdec serve opt-1.3b.skipdec --schedule 2x --allow-schedule 4x

skipdec serve small=opt-125m-int8 large=opt-1.3b-int8 --host 0.0.0.0 --api-key-file keys.txt

skipdec serve opt-1.3b.skipdec --replicas 2 --threads 16 --kv-memory 8GiB

Clients: POST /v1/completions as OpenAI's, GET /v1/models, /v1/schedules, /health/live,
/health/ready, /metrics, /version. SIGTERM and Ctrl-C let running texts end; a second one does not.
Each bundle runs in worker processes, which are started again when they die; exit code 1 if one
dies again and again.

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
    replicas: Annotated[int, _RUNNING] = Field(
        default=1, ge=1, le=64, description="worker processes of each bundle"
    )
    threads: Annotated[int | None, _RUNNING] = Field(
        default=None, ge=1, description="of all workers together (all cores)"
    )
    max_batch_size: Annotated[int, _RUNNING] = Field(
        default=8, ge=1, description="most completions at once, of each worker"
    )
    kv_memory: Annotated[MemorySize | None, _RUNNING] = Field(
        default=None,
        ge=1,
        description="most memory of KV caches, of all workers together (half of what is left)",
    )
    raw_prompt: Annotated[bool, _RUNNING] = Field(
        default=False, description="without the template that the model was tuned with"
    )
    server: Annotated[ServerConfig, Option(panel="Server")] = ServerConfig()
    service: Annotated[ServiceConfig, Option(panel="Limits")] = ServiceConfig()
    restarts: Annotated[RestartPolicy, Option(panel="Limits")] = RestartPolicy()

    def workers(self, bundles: Sequence[ServedBundle]) -> dict[str, list[WorkerSettings]]:
        """What the workers of each bundle, by its name, are started with; all share one machine."""
        from ..serving.process.settings import WorkerSettings

        return {
            bundle.name: [
                WorkerSettings(
                    path=bundle.path,
                    schedule=self.schedule,
                    device=self.device,
                    threads=self.threads,
                    max_batch_size=self.max_batch_size,
                    kv_memory=self.kv_memory,
                    raw_prompts=self.raw_prompt,
                    weights=self.weights,
                    verify=self.verify,
                    service=self.service,
                    worker=place * self.replicas + replica,
                    workers=len(bundles) * self.replicas,
                )
                for replica in range(self.replicas)
            ]
            for place, bundle in enumerate(bundles)
        }


def register(app: typer.Typer) -> None:
    """Add ``serve`` to ``app``."""
    app.command("serve", epilog=_EXAMPLES)(serve)


@from_options
def serve(options: ServeOptions) -> None:
    """Serve bundles over HTTP, many requests in one running batch, each at its own depth."""
    require_extra("serve", "skipdec serve")
    from ..scheduling.admission import parse_admission
    from ..serving.http.server import HttpServer, ServedBundle
    from ..serving.http.watch.logs import log_to_stderr
    from ..serving.process.replicas import open_workers

    # A body that is read in a thread keeps the event loop waiting so long for the interpreter.
    sys.setswitchinterval(_SWITCH_SECONDS)
    parse_admission(options.service.admission)
    log_to_stderr(options.server.log_format)
    bundles = [ServedBundle.parse(text) for text in options.bundles]
    workers = options.workers(bundles)
    server = HttpServer(
        bundles,
        lambda bundle: open_workers(workers[bundle.name], options.restarts),
        options.server,
        workers=sum(map(len, workers.values())),
    )
    for settings in workers.values():
        settings[0].outline()  # that all bundles are whole is known before one is loaded
    # What is there now stays: without it a full collection, during which no thread runs, is short.
    gc.collect()
    gc.freeze()
    server.run()
