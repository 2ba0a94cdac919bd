"""Run tunings one after another in two processes on a CPU, in torchrun's environment.

Both processes are forked after all imports: importing torch and transformers twice takes longer
than all the tunings.

Each job of the JSON file is ``{"sharded": bool, "stop_at": step or null, "error": text or null,
"config": TuneConfig}``; every process must raise a SkipDecError with ``error`` in it.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import matplotlib.figure  # noqa: F401  (for the curves, in each process)
import torch.distributed
from accelerate import state
from accelerate.utils import DistributedType
from interruptions import Stop
from remembered_tokenizers import in_limits

from skipdec.calib.tuning import trainer as tune_training
from skipdec.calib.tuning.config import TuneConfig
from skipdec.calib.tuning.tuning import tune
from skipdec.engines.errors import SkipDecError
from skipdec.exporter.checkpoint import tokenizer

PROCESSES = 2
ADDRESS = "127.0.0.1"


def run(job: dict[str, Any]) -> None:
    os.environ["ACCELERATE_USE_FSDP"] = str(job["sharded"]).lower()
    os.environ["FSDP_VERSION"] = "2"
    os.environ["FSDP_AUTO_WRAP_POLICY"] = "TRANSFORMER_BASED_WRAP"
    train = tune_training.train

    def checked(plan: Any, trainer: Any) -> None:  # noqa: ANN401
        wanted = DistributedType.FSDP if job["sharded"] else DistributedType.MULTI_CPU
        assert trainer.accelerator.distributed_type == wanted
        if job["stop_at"] is not None:
            trainer.add_callback(Stop(job["stop_at"]))
        train(plan, trainer)

    tune_training.train = checked
    try:
        tune(TuneConfig(**job["config"]))
        assert job["error"] is None
    except KeyboardInterrupt:
        assert job["stop_at"] is not None
    except SkipDecError as error:
        if job["error"] is None or job["error"] not in str(error):
            raise
    finally:
        tune_training.train = train
    torch.distributed.barrier()


def allow_sharding_on_a_cpu() -> None:
    """Let accelerate shard on a CPU, which torch's FSDP supports."""
    original = state.PartialState.__init__

    def initialise(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401
        original(self, *args, **kwargs)
        sharded = os.environ["ACCELERATE_USE_FSDP"] == "true"
        if sharded and self.distributed_type == DistributedType.MULTI_CPU:
            self.distributed_type = DistributedType.MULTI_GPU

    state.PartialState.__init__ = initialise


def run_all(jobs: list[dict[str, Any]], rank: int, ports: Any) -> None:  # noqa: ANN401
    """Run the jobs as process ``rank``; ``ports`` is a queue with the port of the store."""
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(PROCESSES),
        "LOCAL_WORLD_SIZE": str(PROCESSES),
        "MASTER_ADDR": ADDRESS,
        "MASTER_PORT": str(ports.get()),
        "TORCHELASTIC_USE_AGENT_STORE": "True",  # the forking process owns it
        "TORCHELASTIC_RESTART_COUNT": "0",
    }
    allow_sharding_on_a_cpu()
    tokenizer._in_limits = in_limits
    for each in jobs:
        run(each)


def main(jobs: list[dict[str, Any]]) -> int:
    """Run the jobs; as soon as one process fails, end the others and return 1."""
    fork = multiprocessing.get_context("fork")
    ports = fork.SimpleQueue()
    running = [
        fork.Process(target=run_all, args=(jobs, rank, ports), daemon=True)
        for rank in range(PROCESSES)
    ]
    for process in running:
        process.start()
    # after the forks, because it starts threads
    store = torch.distributed.TCPStore(ADDRESS, 0, is_master=True, wait_for_workers=False)
    for _ in running:
        ports.put(store.port)
    while running:
        wait([process.sentinel for process in running])
        if any(process.exitcode for process in running):
            return 1
        running = [process for process in running if process.exitcode is None]
    return 0


if __name__ == "__main__":
    sys.exit(main(json.loads(Path(sys.argv[1]).read_text())))
