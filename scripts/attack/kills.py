"""Kill exports, replacements and schedule changes at every one of their events.

    source scripts/setup_environment.sh && python scripts/attack/kills.py --kills 600
    python scripts/attack/kills.py --kills 200 --signal TERM      # or INT: ends in order

One process imports everything and traces once; each kill hits a fork of it. Events are Python's
audit events of the file system, each fsync, and each exchange of two names; kills beyond one per
event come at random moments. After each kill, the result must be absent, completely old or
completely new. Repeating the work must give the bytes of an undisturbed run and leave nothing
beside the result.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from harness import CONFIG

from skipdec.engines.bundle import EngineBundle, write_schedule
from skipdec.engines.bundle import place as bundle_place
from skipdec.engines.bundle.place import Place
from skipdec.engines.errors import SkipDecError, UsageError
from skipdec.engines.host.signals import Interrupts
from skipdec.exporter.config import ExportConfig
from skipdec.exporter.pipeline.exporting import export
from skipdec.runtime.schedule.text import parse_schedule

NUM_LAYERS = 2
_EVENTS = ("open", "fcntl.flock", "shutil.rmtree")  # and all of os.*
Contents = dict[str, bytes]


@dataclass(frozen=True)
class Attack:
    """Work to kill: ``begin`` makes the initial state, ``work`` changes it."""

    name: str
    begin: Callable[[Path], None]
    work: Callable[[Path], object]
    check: Callable[[Path], None]  # raises SkipDecError for an incomplete result


def main() -> None:
    """Distribute the kills over all attacks and print a line for each; exit code 1 on failure."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--kills", type=int, default=600)
    parser.add_argument("--only", help="one of export, replacement, schedule, report")
    parser.add_argument("--signal", choices=("KILL", "TERM", "INT"), default="KILL")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    start = time.perf_counter()
    with TemporaryDirectory(prefix="kills-") as work:
        sent = signal.Signals[f"SIG{arguments.signal}"]
        attacks = [
            attack for attack in make_attacks(Path(work)) if arguments.only in (None, attack.name)
        ]
        victims = [Victim(attack, Path(work) / attack.name, sent) for attack in attacks]
        failures = run(victims, arguments.kills, random.Random(arguments.seed))
    seconds = time.perf_counter() - start
    print(f"{arguments.kills} kills by {sent.name}, {failures} failures, {seconds:.0f} s")
    sys.exit(bool(failures))


def run(victims: Sequence[Victim], kills: int, generator: random.Random) -> int:
    """Kill ``kills`` times; return the number of wrong results."""
    failures = before = 0
    num_events = sum(victim.num_events for victim in victims)
    for victim in victims:
        after = before + victim.num_events
        share = kills * after // num_events - kills * before // num_events
        before = after
        seen: Counter[str] = Counter()
        for when in _moments(share, victim, generator):
            try:
                seen[victim.kill(when)] += 1
            except (SkipDecError, OSError, AssertionError) as error:
                failures += 1
                print(f"FAILED {victim.name} at {when}: {error}", flush=True)
        outcomes = ", ".join(f"{count} {outcome}" for outcome, count in seen.most_common())
        print(f"{victim.name}: {victim.num_events} events, {share} kills: {outcomes}", flush=True)
    return failures


def _moments(share: int, victim: Victim, generator: random.Random) -> Iterator[int | float]:
    """Yield event numbers, evenly spread, and seconds for kills beyond one per event."""
    count = min(share, victim.num_events)
    yield from (place * victim.num_events // count for place in range(count))
    yield from (generator.uniform(0, victim.seconds) for _ in range(share - count))


def make_attacks(work: Path) -> Iterator[Attack]:
    """Return all attacks."""
    model = work / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(CONFIG | {"num_hidden_layers": NUM_LAYERS}))

    common: dict[str, Any] = {"model": str(model), "load_format": "dummy", "verify": False}

    def export_to(target: Path, **options: Any) -> None:  # noqa: ANN401
        export(ExportConfig(output=target, **common, **options))

    def set_schedule(target: Path) -> None:
        schedule = parse_schedule("constant:max=2,horizon=1", num_layers=NUM_LAYERS)
        write_schedule(EngineBundle.open(target).path, schedule.to_document())

    def report(target: Path, text: str = "new") -> None:
        with Place(target, "report.json", "a report").replaced(force=True) as directory:
            (directory / "report.json").write_text(text)
            (directory / "weights").write_bytes(text.encode() * 1000)

    def open_whole(target: Path) -> None:
        EngineBundle.open(target, verify="full")

    export_to(work / "traced")  # forks reuse the traces and libraries
    yield Attack("export", lambda _: None, export_to, open_whole)
    yield Attack(
        "replacement",
        export_to,
        lambda target: export_to(target, seed=1, force=True),
        open_whole,
    )
    yield Attack("schedule", export_to, set_schedule, open_whole)
    yield Attack("report", lambda target: report(target, "old"), report, lambda _: None)


class Victim:
    """One attack, its undisturbed results, and ways to kill it."""

    def __init__(self, attack: Attack, directory: Path, sent: signal.Signals) -> None:
        self.name = attack.name
        self._sent = sent
        self._attack = attack
        self._directory = directory
        self._number = 0
        target = self._fresh()
        self._old = contents(target)
        assert in_child(lambda: attack.work(target)) == 0
        self._new = contents(target)
        assert self._new not in ({}, self._old)
        self.num_events, self.seconds = self._counted()

    def kill(self, when: int | float) -> str:
        """Kill a fresh run at event ``when``, or after that many seconds; return what was left.

        Raises SkipDecError or AssertionError if that, or the result of the next run, is wrong.
        """
        target = self._fresh()
        if isinstance(when, int):
            in_child(lambda: self._work_until(when, target))
        else:
            in_child(lambda: self._attack.work(target), (when, self._sent))
        outcome = self._outcome(target)
        code = in_child(lambda: self._again(target))
        assert code == 0, f"the next run ended with {code}"
        assert contents(target) == self._new, "the next run wrote other bytes"
        left = sorted(path.name for path in target.parent.iterdir())
        assert left == [target.name], f"{', '.join(left)} are there after the next run"
        shutil.rmtree(target.parent)
        return outcome

    def _work_until(self, number: int, target: Path) -> None:
        """Do the work up to event ``number``, which does not happen."""
        left = number

        def count() -> None:
            nonlocal left
            if left == 0:
                os.kill(os.getpid(), self._sent)
            left -= 1

        _at_each_event(count, self._directory)
        self._attack.work(target)

    def _again(self, target: Path) -> None:
        """Repeat the work; a published export reports that its name is taken."""
        is_taken = target.exists() and self.name == "export"
        with suppress(UsageError) if is_taken else nullcontext():
            self._attack.work(target)

    def _outcome(self, target: Path) -> str:
        """Describe what a reader finds; the first one completes or undoes a swap of two renames."""
        beside = target.with_name(f".{target.name}.old")
        if target.exists() or beside.exists():
            self._attack.check(target)
        found = contents(target)
        lasting = {name: data for name, data in found.items() if "/." not in f"/{name}"}
        assert lasting in (self._old, self._new), f"a mixture: {', '.join(found)}"
        what = "new" if lasting == self._new else "old" if found else "absent"
        return what if lasting == found else f"{what} and a temporary file"

    def _fresh(self) -> Path:
        """Return a new name with the initial state."""
        self._number += 1
        target = self._directory / str(self._number) / "result"
        target.parent.mkdir(parents=True)
        in_child(lambda: self._attack.begin(target))
        return target

    def _counted(self) -> tuple[int, float]:
        """Return the number of events of a run, and its seconds."""
        target = self._fresh()
        reader, writer = os.pipe()
        start = time.perf_counter()

        def work() -> None:
            _at_each_event(lambda: os.write(writer, b"."), self._directory)
            self._attack.work(target)

        assert in_child(work) == 0
        seconds = time.perf_counter() - start
        os.close(writer)
        with os.fdopen(reader) as events:
            return len(events.read()), seconds


def in_child(work: Callable[[], object], kill: tuple[float, signal.Signals] | None = None) -> int:
    """Do ``work`` in a fork; return its exit code, or its negative signal.

    ``kill`` gives the seconds and the signal. The fork handles signals as a command does.
    """
    child = os.fork()
    if child == 0:
        code = 1
        try:
            Interrupts().install()
            work()
            code = 0
        except Exception as error:
            print(f"  {type(error).__name__}: {error}", file=sys.stderr, flush=True)
            raise
        finally:
            os._exit(code)
    if kill is not None:
        time.sleep(kill[0])
        os.kill(child, kill[1])
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _at_each_event(act: Callable[[], object], directory: Path) -> None:
    """Call ``act`` before each event of this process, a fork, as hooks are permanent."""
    prefix = str(directory)

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        if not event.startswith("os.") and event not in _EVENTS:
            return
        names = [os.fsdecode(name) for name in arguments if isinstance(name, (str, bytes, Path))]
        # Relative names belong to the descriptor of a directory that is being deleted.
        if event == "fcntl.flock" or any(
            name.startswith(prefix) or not name.startswith("/") for name in names
        ):
            act()

    def before(change: Callable[..., Any]) -> Callable[..., Any]:
        def changed(*arguments: object) -> Any:  # noqa: ANN401
            act()
            return change(*arguments)

        return changed

    setattr(os, "fsync", before(os.fsync))  # noqa: B010  (neither this nor the exchange has an audit event)
    setattr(bundle_place, "exchange", before(bundle_place.exchange))  # noqa: B010
    sys.addaudithook(hook)


def contents(directory: Path) -> Contents:
    """Return the files below ``directory`` with their bytes; empty if it is missing."""
    return {
        path.relative_to(directory).as_posix(): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


if __name__ == "__main__":
    main()
