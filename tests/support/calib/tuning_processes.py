"""Tunings in two processes on a CPU, one after another, under ``python -m torch.distributed.run``.

Each job of the JSON file is ``{"sharded": bool, "stop_at": step or null, "error": text or null,
"config": TuneConfig}``; every process must raise a SkipDecError with ``error`` in it.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch.distributed
from accelerate import state
from accelerate.utils import DistributedType
from interruptions import Stop

from skipdec.calib.tuning import trainer as tune_training
from skipdec.calib.tuning.config import TuneConfig
from skipdec.calib.tuning.tuning import tune
from skipdec.engines.errors import SkipDecError


def run(job: dict[str, Any]) -> None:
    os.environ["ACCELERATE_USE_FSDP"] = str(job["sharded"]).lower()
    os.environ["FSDP_VERSION"] = "2"
    os.environ["FSDP_AUTO_WRAP_POLICY"] = "TRANSFORMER_BASED_WRAP"
    make_trainer = tune_training.make_trainer

    def checked(*args: Any) -> Any:  # noqa: ANN401
        trainer = make_trainer(*args)
        wanted = DistributedType.FSDP if job["sharded"] else DistributedType.MULTI_CPU
        assert trainer.accelerator.distributed_type == wanted
        if job["stop_at"] is not None:
            trainer.add_callback(Stop(job["stop_at"]))
        return trainer

    tune_training.make_trainer = checked
    try:
        tune(TuneConfig(**job["config"]))
        assert job["error"] is None
    except KeyboardInterrupt:
        assert job["stop_at"] is not None
    except SkipDecError as error:
        if job["error"] is None or job["error"] not in str(error):
            raise
    finally:
        tune_training.make_trainer = make_trainer
    torch.distributed.barrier()


def allow_sharding_on_a_cpu() -> None:
    """accelerate shards on accelerators alone, though torch's FSDP runs on a CPU as well."""
    original = state.PartialState.__init__

    def initialise(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401
        original(self, *args, **kwargs)
        sharded = os.environ["ACCELERATE_USE_FSDP"] == "true"
        if sharded and self.distributed_type == DistributedType.MULTI_CPU:
            self.distributed_type = DistributedType.MULTI_GPU

    state.PartialState.__init__ = initialise


if __name__ == "__main__":
    allow_sharding_on_a_cpu()
    for described in json.loads(Path(sys.argv[1]).read_text()):
        run(described)
