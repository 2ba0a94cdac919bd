"""ConsoleProgress prints bars on a terminal, lines elsewhere, and always warnings and advice."""

from __future__ import annotations

import io
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest
from rich.console import Console
from rich.progress import Progress

from skipdec.engines.host import progress as progress_module
from skipdec.engines.host.progress import ConsoleProgress

Shown = Callable[..., str]


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> Shown:
    """Run some events and return what was written."""
    shown_bars: list[Progress] = []

    def bars(*columns: Any, **options: Any) -> Progress:  # noqa: ANN401
        shown_bars.append(Progress(*columns, **options))
        return shown_bars[-1]

    monkeypatch.setattr(progress_module, "Progress", bars)

    def run(*, terminal: bool = False, seconds: float = 1e9, **options: bool) -> str:
        file = io.StringIO()
        console = Console(file=file, force_terminal=terminal, width=200, no_color=True)
        with ConsoleProgress(console=console, seconds_between_lines=seconds, **options) as progress:
            progress.planned("opt: 2 texts", ["run: pip install 'skipdec[plot]'"])
            progress.stage("building", 2)
            progress.part("layer_000.t64", "tactics", 3, 10)
            progress.part("layer_000.t128", "tactics", 4, 10)
            if terminal:
                shown_bars[-1].refresh()
            progress.advance("layer_000", detail="1.0 MB")
            progress.advance("head")
            if terminal:
                shown_bars[-1].refresh()
            progress.stage("tuning")
            progress.status("loss 2.5")
            progress.note("wrote it")
        return file.getvalue()

    return run


KEPT = ["opt: 2 texts", "  layer_000  1.0 MB", "loss 2.5", "wrote it"]
WARNING = "warning: run: pip install 'skipdec[plot]'"


def test_important_events_print_a_line_without_a_terminal(shown: Shown) -> None:
    assert shown().splitlines() == [WARNING, *KEPT]


def test_quiet_prints_only_warnings(shown: Shown) -> None:
    assert shown(quiet=True).splitlines() == [WARNING]
    assert "tactics" not in shown(quiet=True, terminal=True)


def test_verbose_adds_a_line_for_each_item(shown: Shown) -> None:
    assert shown(verbose=True).splitlines() == [WARNING, *KEPT[:2], "  head", *KEPT[2:]]


def test_progress_is_printed_at_intervals_without_a_terminal(shown: Shown) -> None:
    lines = shown(seconds=0).splitlines()
    assert lines[2:7] == [
        "building 0/2",
        "building 0/2 layer_000.t64 tactics 3/10",
        "building 0/2 layer_000.t128 tactics 4/10",
        "  layer_000  1.0 MB",
        "building 2/2 head",
    ]
    assert lines[7] == "tuning"


def test_a_terminal_shows_a_bar_per_stage_and_part(shown: Shown) -> None:
    written = shown(terminal=True)
    for text in ("building", "layer_000.t64", "layer_000.t128", "3/10", "4/10"):
        assert text in written
    after = written[written.index("1.0 MB") :]
    assert "2/2" in after
    assert "tactics" not in after[after.index("2/2") :]


@pytest.mark.parametrize(("error", "is_advised"), [(KeyboardInterrupt, True), (ValueError, False)])
def test_only_ctrl_c_prints_advice(error: type[BaseException], is_advised: bool) -> None:
    console = Console(file=io.StringIO())
    progress = ConsoleProgress(quiet=True, advice=lambda: "run it again", console=console)
    with pytest.raises(error), progress:
        raise error
    assert ("run it again" in console.file.getvalue()) == is_advised  # type: ignore[attr-defined]


def test_lines_show_the_time_left() -> None:
    file, seconds = io.StringIO(), count(0, 10)
    console = Console(file=file, width=200, get_time=lambda: float(next(seconds)))
    with ConsoleProgress(console=console, seconds_between_lines=0) as progress:
        progress.stage("tuning", 40)
        for _ in range(10):
            progress.advance()
    last = file.getvalue().splitlines()[-1]
    assert last.startswith("tuning 10/40 (0:0")
    assert last.endswith(" left)")
