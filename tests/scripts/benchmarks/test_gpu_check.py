"""Parts of a GPU check run in order of worth, once each, within the time of their call."""

from __future__ import annotations

import json
import os
import select
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from benchmarks.gpu import command, selected_tests
from benchmarks.gpu.check import Check, run_limited
from benchmarks.gpu.page import report_of
from benchmarks.gpu.parts import EXPORT, CheckConfig, Part, parts_of
from benchmarks.gpu.record import Outcome, Record
from benchmarks.gpu.report import markdown

from skipdec.engines.errors import UsageError

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


def test_parts_run_in_order_of_worth_and_are_saved_one_by_one(calls: Calls) -> None:
    parts = [part("c", 3, WELL), part("a", 1, WELL), part("b", 2, WELL)]
    assert calls.run(parts) == {"a": "passed", "b": "passed", "c": "passed"}
    assert calls.ran == ["a", "b", "c"]
    assert [len(record.outcomes) for record in calls.saved] == [0, 1, 2, 3]


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


def test_a_bundle_that_is_missing_counts_and_is_made_first(
    calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = part("export", 0, f"open({str(calls.config.speed_bundle)!r}, 'w')", seconds=100)
    monkeypatch.setattr("benchmarks.gpu.check.EXPORT", made)
    needing = Part(**{**vars(part("speed", 1, WELL, seconds=1)), "needs_bundle": True})
    assert calls.run([needing], seconds=60) == {}
    assert calls.run([needing]) == {"speed": "passed"}
    assert calls.ran == ["export", "speed"]
    again = Calls(calls.config.work)
    assert again.run([needing], seconds=60) == {"speed": "passed"}


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 2, "outcomes": []}'])
def test_another_file_is_no_record(tmp_path: Path, text: str) -> None:
    (tmp_path / "record.json").write_text(text)
    with pytest.raises(UsageError, match="is no record of a GPU check"):
        Record.load(tmp_path / "record.json")


def test_a_record_of_another_model_is_refused(tmp_path: Path) -> None:
    record = Record(measured=CheckConfig(work=tmp_path).measured)
    record.require_same(CheckConfig(work=tmp_path / "other").measured, tmp_path)
    with pytest.raises(UsageError, match=r"'model': 'opt-1.3b'.*'opt-125m'"):
        record.require_same(CheckConfig(work=tmp_path, model="opt-125m").measured, tmp_path)


def test_the_parts_are_the_same_for_a_gpu_and_its_rehearsal(tmp_path: Path) -> None:
    names = [part.name for part in parts_of(CheckConfig(work=tmp_path))]
    rehearsed = CheckConfig(work=tmp_path, **command.REHEARSAL)
    assert len(set(names)) == len(names) == len(parts_of(rehearsed))
    assert names[:3] == ["device", "tests", "speed"]


def test_every_part_fits_into_one_call_of_ten_minutes(tmp_path: Path) -> None:
    parts = parts_of(CheckConfig(work=tmp_path))
    assert all(part.seconds <= part.timeout <= 500 for part in parts)
    assert sum(part.seconds for part in parts) + EXPORT.seconds <= 540  # all of them, too
    words = command.plan(parts, Record(measured={}), 540)
    assert len(words.splitlines()) == len(parts) + 1
    assert " 1. device                0.2 min" in words
    assert "this call: 9.0" in words


def test_the_page_shows_parts_that_have_not_run(tmp_path: Path) -> None:
    config = CheckConfig(work=tmp_path)
    words = "build ended with 1: compute capability 9.0 is not supported"
    result = {"done": ["export"], "words": words}
    outcome = Outcome(name="tensorrt", state="passed", seconds=3, gpu="H100", result=result)
    record = Record(measured=config.measured, outcomes=(outcome,))
    page = markdown(report_of(record, parts_of(config), config))
    assert page.count("**not run yet**") == len(parts_of(config)) - 1
    assert "| done: export |" in page
    assert words in page


def test_tests_become_counts_reasons_figures_and_problems(tmp_path: Path) -> None:
    (tmp_path / "junit.xml").write_text(
        '<testsuites><testsuite><testcase name="test_a"><properties><property name="equal" '
        'value="200"/></properties></testcase><testcase name="test_b"><skipped message="no GPU"/>'
        '</testcase><testcase name="test_c"><failure message="differs"/></testcase></testsuite>'
        "</testsuites>"
    )
    assert selected_tests.summary(tmp_path / "junit.xml") == {
        "passed": 1,
        "skipped": {"no GPU": 1},
        "figures": {"test_a": {"equal": "200"}},
        "problems": ["test_c: differs"],
    }
    (tmp_path / "junit.xml").write_text("<testsuites/>")
    assert selected_tests.summary(tmp_path / "junit.xml")["problems"] == [
        "no test passed; skipped: none"
    ]


def test_a_rehearsal_of_some_parts_goes_on_in_the_next_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As scripts/gpu_check.sh --rehearse runs it: the device, then some tests."""
    common = ["gpu", "--rehearse", f"--out={tmp_path / 'out'}", f"--work={tmp_path / 'work'}"]
    selection = ["--tests=-k", "--tests=excuses", "--part=device", "--part=tests"]
    monkeypatch.setattr(sys, "argv", [*common, *selection, "--seconds=60"])
    assert command.main() == 0
    told = capsys.readouterr()
    assert "tests: not begun" in told.err
    assert "a rehearsal" in told.out.lower()
    document = tmp_path / "out" / "gpu-check.json"
    moved = document.rename(tmp_path / "carried.json")
    monkeypatch.setattr(sys, "argv", [*common, *selection, f"--resume={moved}"])
    assert command.main() == 0
    outcomes = json.loads(document.read_text())["outcomes"]
    assert [outcome["name"] for outcome in outcomes] == ["device", "tests"]
    assert outcomes[1]["result"]["passed"] == 5
    assert {path.name for path in document.parent.iterdir()} == {"gpu-check.json", "gpu-check.md"}


@pytest.mark.parametrize(
    ("option", "problem"),
    [("--part=texts", "'texts' is none; allowed: device"), ("--resume=/none", "is no record")],
)
def test_wrong_arguments_are_refused_before_anything_runs(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    option: str,
    problem: str,
) -> None:
    monkeypatch.setattr(sys, "argv", ["gpu", "--rehearse", f"--out={tmp_path / 'out'}", option])
    assert command.main() == 2
    assert problem in capsys.readouterr().err
