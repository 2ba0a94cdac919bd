"""GenerationProgress sums up depth, speed and drafts over several calls."""

from __future__ import annotations

from dataclasses import replace

import pytest

from skipdec.engines.host.events import Events
from skipdec.runtime.commands import progress
from skipdec.runtime.commands.progress import GenerationProgress
from skipdec.runtime.drafting.config import parse_draft
from skipdec.runtime.schedule import ExitSchedule
from skipdec.runtime.schedule.text import parse_schedule
from skipdec.runtime.tokens.outputs import Drafts, FinishReason, StreamDelta
from skipdec.runtime.tokens.sampling import SamplingParams


def delta(request: int, layers: int, reason: FinishReason | None = None) -> StreamDelta:
    return StreamDelta(request, 0, (7,), "x", reason, layers)


class CountingEvents(Events):
    """Counts the completions that are reported."""

    def __init__(self) -> None:
        self.completions = 0

    def advance(self, item: str = "", steps: int = 1, *, detail: str = "") -> None:
        assert item.endswith(" tokens/s")
        self.completions += steps


def test_the_summary_follows_from_the_deltas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_SECONDS_BETWEEN_UPDATES", 0)
    monkeypatch.setattr(progress, "DEFAULT_MAX_TOKENS", 3)
    events = CountingEvents()
    counted = GenerationProgress([ExitSchedule.full(6)], 3, events, "skipdec avx2")
    with counted:
        counted.update([delta(0, 6), delta(1, 6)])
        counted.update([delta(0, 4), delta(1, 4, "stop")])
        counted.update([delta(0, 3, "length")])
        counted.update([delta(0, 6)])  # the next call
        counted.update([StreamDelta(0, 0, (), "", "abort", 0)])
    summary = counted.summary()
    assert (summary["tokens"], summary["completions"], events.completions) == (6, 2, 2)
    assert summary["realised_depth"] == pytest.approx((4 + 4 + 3) / 3)
    text = counted.summary_text(SamplingParams())
    assert "realised depth 3.67 of 6 layers" in text
    assert "1 of 2 texts end at --max-tokens, by default 3" in text
    assert "--max-tokens" not in counted.summary_text(SamplingParams(max_tokens=16))
    assert "prompts included, on skipdec avx2" in text
    assert summary["kernels"] == "skipdec avx2"
    assert summary["tokens_per_second"] == pytest.approx(6 / summary["seconds"])


def test_reaching_the_context_limit_does_not_blame_max_tokens() -> None:
    counted = GenerationProgress([ExitSchedule.full(6)], 1, Events(), "skipdec avx2")
    with counted:
        counted.update([delta(0, 6)] * 40 + [delta(0, 6, "length")])
    assert "--max-tokens" not in counted.summary_text(SamplingParams())


def test_a_single_token_has_no_realised_depth() -> None:
    counted = GenerationProgress([ExitSchedule.full(6)], 3, Events(), "skipdec avx2")
    with counted:
        counted.update([delta(0, 6, "length")])
    assert counted.realised_depth is None
    assert "realised depth" not in counted.summary_text(SamplingParams())


def test_different_horizons_are_shown_as_a_range() -> None:
    schedules = [parse_schedule("2x", num_layers=6, horizon=horizon) for horizon in (20, 4, 9)]
    counted = GenerationProgress(schedules, 3, Events(), "skipdec avx2")
    text = "linear:max=4,min=2,warmup=1,horizon=4…20"
    assert counted.summary_text(SamplingParams()).startswith(f"schedule {text}, horizon 4…20\n")
    assert (counted.summary()["schedule"], counted.summary()["horizon"]) == (text, None)


def test_full_depth_shows_no_horizon() -> None:
    counted = GenerationProgress([ExitSchedule.full(6)], 1, Events(), "skipdec avx2")
    assert counted.summary_text(SamplingParams()).startswith("schedule full\n")


def test_different_schedules_are_counted() -> None:
    schedules = [parse_schedule(text, num_layers=6, horizon=9) for text in ("2x", "full", "2x")]
    counted = GenerationProgress(schedules, 3, Events(), "skipdec avx2")
    assert counted.summary_text(SamplingParams()).startswith("2 schedules, horizon ")
    assert counted.summary()["schedule"] is None


def test_drafts_are_summarised_as_tokens_per_pass_and_acceptance() -> None:
    drafted = replace(delta(0, 6), drafted=True)
    counted = GenerationProgress(
        [ExitSchedule.full(6)], 1, Events(), "skipdec avx2", parse_draft("own")
    )
    with counted:
        counted.update([delta(0, 6)])
        counted.update([drafted, drafted, delta(0, 6)])
        counted.update([drafted, delta(0, 6, "length")])
    figures = counted.summary()["drafts"]
    assert (figures["passes"], figures["accepted"], figures["tokens_per_pass"]) == (2, 3, 2.5)
    assert (figures["drafted"], figures["acceptance"]) == (0, None), (
        "only results count drafted tokens"
    )
    assert counted.summary_text(SamplingParams()).endswith("\ndraft own: 2.50 tokens per pass")
    counted.count_drafts(Drafts(passes=2, drafted=4, accepted=3))
    assert counted.summary()["drafts"]["acceptance"] == 0.75
    text = counted.summary_text(SamplingParams())
    assert "draft own: 2.50 tokens per pass, 75% of 4 drafted tokens right" in text


def test_the_summary_of_one_token_has_no_plural() -> None:
    counted = GenerationProgress([ExitSchedule.full(6)], 1, Events(), "skipdec avx2")
    counted.update([delta(0, 6, "length")])
    assert "\n1 token in " in counted.summary_text(SamplingParams())
