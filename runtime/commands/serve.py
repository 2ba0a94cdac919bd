"""``skipdec serve``: serve bundles over OpenAI's completions and chat APIs."""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from ...engines.checking import Option, ValidatedConfig
from ...engines.host.installation import require_extra
from ...engines.host.options import from_options
from ..opening import OpenOptions
from ..serving.http.config import ServerConfig
from ..serving.process.settings import RestartPolicy
from .checkpoints import ExportChoice, bundle_of

if TYPE_CHECKING:
    from ..serving.http.server import ServedBundle
    from ..serving.process.settings import WorkerSettings

_SWITCH_SECONDS = 0.001

EXAMPLES = """
Examples:

\b
skipdec serve opt-1.3b.skipdec

\b
skipdec serve opt-1.3b.skipdec --schedule 2x --allow-schedule 4x

\b
skipdec serve opt-1.3b.skipdec --schedule full --draft own+lookup

\b
skipdec serve small=opt-125m-int8 large=opt-1.3b-int8 --host 0.0.0.0 \\
    --api-key-file keys.txt

\b
skipdec serve opt-1.3b.skipdec --threads 16 --kv-memory 8GiB

Clients: POST /v1/completions and /v1/chat/completions as OpenAI's, GET /v1/models, /v1/schedules,
/health/live, /health/ready, /metrics, /version. SIGTERM and Ctrl-C let running texts end; a second
one aborts. Each bundle runs in a worker process, which is restarted when it dies; the exit code is
1 if it dies repeatedly. All bundles share --threads and --kv-memory; --max-batch-size is for each.
A checkpoint is exported once, into ~/.cache/skipdec.
"""


class ServeOptions(ValidatedConfig):
    """The options of ``skipdec serve``."""

    bundles: Annotated[tuple[str, ...], Option(metavar="MODEL", is_argument=True)] = Field(
        min_length=1,
        description="bundles' directories, or checkpoints' directories, hub ids or short names; "
        "NAME=MODEL serves it by that name",
    )
    opening: Annotated[OpenOptions, Option()] = OpenOptions()
    export: Annotated[ExportChoice, Option()] = ExportChoice()
    server: Annotated[ServerConfig, Option()] = ServerConfig()
    restarts: Annotated[RestartPolicy, Option()] = RestartPolicy()

    def workers(self, bundles: Sequence[ServedBundle]) -> dict[str, WorkerSettings]:
        """Return the settings of each bundle's worker by its name; all share one machine."""
        from ..serving.process.settings import WorkerSettings

        return {
            bundle.name: WorkerSettings(
                path=bundle.path, worker=index, workers=len(bundles), **dict(self.opening)
            )
            for index, bundle in enumerate(bundles)
        }


@from_options
def serve(options: ServeOptions) -> None:
    """Serve bundles over HTTP, many requests in one running batch, each at its own depth."""
    require_extra("serve", "skipdec serve")
    from ..serving.http.logs import log_to_stderr
    from ..serving.http.models import allowed_texts
    from ..serving.http.server import HttpServer, ServedBundle
    from ..serving.process.engine import ProcessEngine

    # A thread that parses a body delays the event loop by at most this long.
    sys.setswitchinterval(_SWITCH_SECONDS)
    log_to_stderr(options.server.log_format)
    given = [ServedBundle.parse(text) for text in options.bundles]
    server = HttpServer(  # takes its address before a checkpoint is exported; `run` listens
        given,
        lambda bundle: ProcessEngine.opened(
            workers[bundle.name], options.restarts, inputs=inputs[bundle.name]
        ),
        options.server,
    )
    bundles = [replace(one, path=bundle_of(one.path, options.export, quiet=False)) for one in given]
    workers = options.workers(bundles)
    # Refuse a damaged bundle before any is loaded.
    inputs = {name: settings.inputs() for name, settings in workers.items()}
    for each in inputs.values():
        allowed_texts(each.schedules, options.server.schedules)
    # A full collection stops all threads; it is short if it skips the objects that live to the end.
    gc.collect()
    gc.freeze()
    server.run()
