"""Parts of a GPU check run in order of worth, once each, within the time of their call."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from benchmarks.gpu.check import Check, run_limited
from benchmarks.gpu.parts import CheckConfig, Part
from benchmarks.gpu.record import Record

WELL = "print('{}')"


def part(name: str, worth: int, code: str, *, seconds: float = 0.0, timeout: float = 60) -> Part:
    """A part that runs ``code``, after a line in the file ``ran`` of the work directory."""

    def run(config: CheckConfig) -> list[str]:
        log = f"open({str(config.work / 'ran')!r}, 'a').write({name + ' '!r})"
        return [sys.executable, "-c", f"{log}\n{code}"]

    return Part(name=name, worth=worth, proves=name, seconds=seconds, timeout=timeout, command=run)


class Calls:
    """Calls of a check over one work directory; each returns its record."""

    def __init__(self, work: Path) -> None:
        self.config = CheckConfig(work=work, device="rehearsal")
        self.record = Record(measured=self.config.measured)
        self.words: list[str] = []
        self.saved: list[Record] = []

    def run(self, parts: Sequence[Part], seconds: float = 600) -> dict[str, str]:
        """Run a call; return the state of each part so far."""
        check = Check(
            self.config,
            parts,
            self.record,
            seconds=seconds,
            gpu="none",
            save=self.saved.append,
            progress=self.words.append,
        )
        self.record = check.run()
        return {outcome.name: outcome.state for outcome in self.record.outcomes}

    @property
    def ran(self) -> list[str]:
        return (self.config.work / "ran").read_text().split()


@pytest.fixture
def calls(tmp_path: Path) -> Calls:
    return Calls(tmp_path)


def test_a_call_goes_on_behind_the_last_finished_part(calls: Calls) -> None:
    parts = [part("a", 1, WELL), part("b", 2, "raise SystemExit(3)"), part("c", 3, WELL)]
    calls.run(parts[:2])
    document = calls.config.work / "record.json"
    calls.record.save(document)
    fresh = Calls(calls.config.work)
    fresh.record = Record.load(document)
    fresh.run(parts)
    assert fresh.ran == ["a", "b", "c"]
    assert [record.outcomes[-1].name for record in fresh.saved] == ["b", "c"]


def test_a_part_that_does_not_fit_is_left_to_the_next_call(calls: Calls) -> None:
    parts = [part("long", 1, WELL, seconds=100), part("short", 2, WELL, seconds=1)]
    assert calls.run(parts, seconds=60) == {"short": "passed"}
    assert calls.words[0].startswith("long: not begun, needs 100 s, ")
    assert calls.run(parts) == {"short": "passed", "long": "passed"}
    assert calls.ran == ["short", "long"]


def test_failures_keep_their_last_words_and_the_next_part_runs(calls: Calls) -> None:
    parts = [
        part("crash", 1, "import os; os.abort()"),
        part("error", 2, "import sys; sys.exit('x' * 5000 + 'no | memory')"),
        part("silent", 3, "pass"),
        part("wrong", 4, 'print(\'{"problems": ["tokens differ"]}\')'),
        part("good", 5, WELL),
    ]
    states = calls.run(parts)
    assert list(states.values()) == ["failed"] * 4 + ["passed"]
    words = {outcome.name: outcome.output for outcome in calls.record.outcomes}
    assert words["crash"].startswith("ended with -6")
    assert words["error"].startswith("ended with 1: … ")
    assert words["error"].endswith("no | memory")
    assert len(words["error"]) < 2000
    assert words["silent"].startswith("ended with 0")
    assert words["wrong"] == "tokens differ"


HANGS = "import sys, signal; print('so far', file=sys.stderr, flush=True); signal.pause()"


def test_a_part_that_hangs_is_killed_and_the_next_one_runs(calls: Calls) -> None:
    parts = [part("hangs", 1, HANGS, timeout=1), part("good", 2, WELL)]
    assert calls.run(parts) == {"hangs": "hung", "good": "passed"}
    assert "so far" in calls.record.outcomes[0].output
    calls.run(parts)
    assert calls.ran == ["hangs", "good"]


def test_a_part_cut_off_by_the_call_gets_one_more_chance(calls: Calls) -> None:
    parts = [part("hangs", 1, HANGS)]
    assert calls.run(parts, seconds=6) == {"hangs": "cut off"}
    assert calls.run(parts, seconds=6) == {"hangs": "hung"}
    calls.run(parts, seconds=6)
    assert calls.ran == ["hangs", "hangs"]


def test_children_of_a_killed_part_end_with_it(tmp_path: Path) -> None:
    fifo = tmp_path / "held"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    try:
        ended = run_limited(["sh", "-c", f"tail -f /dev/null >{fifo} & echo $!; wait"], 1)
        assert ended.code is None
        assert ended.stdout.strip().isdigit()
        # The FIFO reaches EOF once the child, its only writer, is gone.
        assert select.select([reader], [], [], 60)[0]
        assert os.read(reader, 1) == b""
    finally:
        os.close(reader)
