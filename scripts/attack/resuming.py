"""Damage the saves of interrupted tunings, kill tunings at random, and resume them.

    source scripts/setup_environment.sh && python scripts/attack/resuming.py WORK --kills 20

Every resumed run must end with the weights of an undisturbed one, byte for byte, or with an error
that says what to do. WORK is created and may be deleted afterwards.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from skipdec import SkipDecError, TuneConfig
from skipdec.calib.data.data import DataConfig
from skipdec.calib.tuning.work import TuningDirectories

_FAILED = 3  # exit code of a run that failed with one of our errors
_STEPS, _SAVE_STEPS, _KILLED_AFTER = 12, 4, 10
_LATEST_KILL = 4.0  # seconds
_DAMAGES: dict[str, Callable[[Path], object]] = {
    "removed": Path.unlink,
    "emptied": lambda path: path.write_bytes(b""),
    "cut": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "zeroed": lambda path: path.write_bytes(bytes(path.stat().st_size)),
}


def main() -> None:
    """Print each outcome; exit code 1 if a run ended with other weights or a traceback."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("work", type=Path)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    attack = _Attack(arguments.work)
    results = [*attack.damages(), *attack.kills(arguments.kills, random.Random(arguments.seed))]
    for outcome in sorted(set(results)):
        print(f"{results.count(outcome):4} {outcome}")
    sys.exit(any(outcome.startswith("FAILED") for outcome in results))


class _Attack:
    """Tunes in forked children, which share this process's imports."""

    def __init__(self, work: Path) -> None:
        import torch
        from transformers import Trainer  # noqa: F401  (heavy: imported once, not in each child)

        import skipdec.calib.tuning.trainer
        import skipdec.calib.tuning.tuning  # noqa: F401

        torch.set_num_threads(1)
        work.mkdir(parents=True)
        self._work = work
        self._rows = work / "rows.jsonl"
        rows = ({"prompt": f"name[{i}]", "completion": "a pub" + "." * i} for i in range(8))
        self._rows.write_text("".join(json.dumps(row) + "\n" for row in rows))
        assert self._run("undisturbed") == 0
        self._expected = self._weights("undisturbed")

    def damages(self) -> list[str]:
        """Damage each file of the newest save, then of all saves, in each way."""
        self._run("killed", kill_after=_KILLED_AFTER)
        saves = sorted(TuningDirectories(self._work / "killed").checkpoints.iterdir())
        names = sorted(path.name for path in saves[-1].iterdir())
        assert len(saves) == 2, saves
        return [
            self._damaged(name, way, count)
            for name in names
            for way in _DAMAGES
            for count in (1, 2)
        ]

    def kills(self, count: int, chance: random.Random) -> list[str]:
        """Kill runs at random moments, again and again, until one completes."""
        outcomes = []
        for index in range(count):
            name = f"kills-{index}"
            directories = TuningDirectories(self._work / name)
            code: int | None = None
            for _ in range(3):
                resume = directories.last_checkpoint() is not None
                code = self._run(name, resume=resume, patience=chance.uniform(0, _LATEST_KILL))
                if code == 0:
                    break
            if code != 0 and not directories.output.exists():
                self._run(name, resume=directories.last_checkpoint() is not None)
            self._run(name)  # refused, as the output exists; deletes what a late kill left
            left = directories.work.exists()
            outcomes.append(self._outcome("killed", name) if not left else "FAILED: work is left")
        return outcomes

    def _damaged(self, name: str, way: str, count: int) -> str:
        copy = self._work / ".copy.tuning"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.rmtree(self._work / "copy", ignore_errors=True)
        shutil.copytree(self._work / ".killed.tuning", copy)
        newest = sorted((copy / "checkpoints").iterdir(), reverse=True)
        for save in newest[:count]:
            _DAMAGES[way](save / name)
        code = self._run("copy", resume=True)
        if count == 2 and code == _FAILED:
            return "all saves damaged: an error that says so"
        return self._outcome(f"{count} damaged", "copy") + (f", {name} {way}" if code else "")

    def _outcome(self, what: str, name: str) -> str:
        same = (self._work / name).exists() and self._weights(name) == self._expected
        return f"{what}: the weights of an undisturbed run" if same else f"FAILED: {what}"

    def _weights(self, name: str) -> bytes:
        return (self._work / name / "model.safetensors").read_bytes()

    def _run(
        self,
        name: str,
        *,
        resume: bool = False,
        kill_after: int | None = None,
        patience: float | None = None,
    ) -> int | None:
        """Return a run's exit code; it may be killed at a step or after some seconds."""
        config = TuneConfig(
            from_scratch="layers=4,width=32,heads=2,positions=48,dropout=0.1",
            vocab_size=300,
            data=DataConfig(path=self._rows),
            schedule="2x",
            mixture=("full",),
            output=self._work / name,
            max_steps=_STEPS,
            save_steps=_SAVE_STEPS,
            batch_size=4,
            device="cpu",
            resume=resume,
        )
        context = multiprocessing.get_context("fork")
        child = context.Process(target=_tune, args=(config, kill_after))
        child.start()
        child.join(patience)
        if child.is_alive():
            child.kill()
            child.join()
        return child.exitcode


def _tune(config: TuneConfig, kill_after: int | None) -> None:
    import os
    import signal

    from transformers import TrainerCallback
    from transformers.utils import logging

    from skipdec.calib.tuning import trainer
    from skipdec.calib.tuning.tuning import tune

    class Kill(TrainerCallback):  # type: ignore[misc]  # transformers is untyped
        def on_step_end(self, args: object, state: Any, control: object, **_: object) -> None:  # noqa: ANN401
            if state.global_step == kill_after:
                os.kill(os.getpid(), signal.SIGKILL)

    make_trainer = trainer.make_trainer

    def killed(*args: Any) -> Any:  # noqa: ANN401
        made = make_trainer(*args)
        made.add_callback(Kill())
        return made

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    trainer.make_trainer = killed  # type: ignore[assignment]  # whatever its arguments
    try:
        tune(config)
    except SkipDecError as error:
        print(error, file=sys.stderr)
        os._exit(_FAILED)


if __name__ == "__main__":
    main()
