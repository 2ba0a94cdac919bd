"""Parts that run layers: which ones, what they cost, and numbers that a placement refuses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from skipdec import ExitSchedule, UsageError
from skipdec.engines.bundle import EngineBundle
from skipdec.runtime.drafting.bundle import draft_resolver
from skipdec.runtime.drafting.config import parse_draft
from skipdec.runtime.drafting.layers import byte_share, draft_plan
from skipdec.runtime.schedule import LayerPlan

TOP = ExitSchedule.parse("linear:max=8,min=4,horizon=9", num_layers=12)
SPREAD = ExitSchedule.parse("constant:max=6,placement=unified-nested", num_layers=12)


@pytest.mark.parametrize(
    ("text", "own", "layers"),
    [
        ("layers:3", TOP, (0, 10, 11)),
        ("layers:3", SPREAD, (0, 5, 11)),
        ("layers:3", ExitSchedule.full(12), (0, 10, 11)),
        (
            "layers:4",
            ExitSchedule.parse("4x:horizon=9,prompt=decay", num_layers=12),
            (0, 9, 10, 11),
        ),
        ("layers:2", ExitSchedule.parse("constant:max=6,placement=bottom", num_layers=12), (0, 1)),
        ("ends:1", SPREAD, (0,)),
        ("ends:3", SPREAD, (0, 10, 11)),
        ("first:3", SPREAD, (0, 1, 2)),
    ],
)
def test_a_part_runs_the_layers_that_it_names(
    text: str, own: ExitSchedule, layers: tuple[int, ...]
) -> None:
    config = parse_draft(text)
    assert config is not None
    assert draft_plan(config.parts[0], own).layers == layers


def test_a_placement_refuses_numbers_that_it_cannot_place(exported: Callable[..., Path]) -> None:
    bundle = EngineBundle.open(exported("pre_norm"))
    drafts = draft_resolver(bundle, ExitSchedule.parse("constant:max=3", num_layers=6))
    with pytest.raises(UsageError, match=r"layers:1: .* allowed with placement top: 2 or more"):
        drafts.resolve("layers:1,exact=no")
    assert drafts.resolve("layers:2,exact=no") == parse_draft("layers:2,exact=no")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("own+trained", "trained needs a draft layer, which the bundle does not have"),
        ("ends:2,head=64", "head is 64, but the bundle has no narrow head"),
        ("ends:6", "ends:6 runs 6 layers of 6; allowed: 1 to 5"),
    ],
)
def test_drafts_that_a_bundle_cannot_run_are_refused(
    exported: Callable[..., Path], text: str, problem: str
) -> None:
    drafts = draft_resolver(EngineBundle.open(exported("pre_norm")), ExitSchedule.full(6))
    with pytest.raises(UsageError, match=problem):
        drafts.resolve(text)


def test_a_text_is_resolved_once(exported: Callable[..., Path]) -> None:
    drafts = draft_resolver(EngineBundle.open(exported("pre_norm")), default="own,exact=no")
    assert drafts.resolve() is drafts.resolve("own,exact=no")
    assert drafts.resolve("off") is None
    with pytest.raises(UsageError, match="is 5; allowed: a text"):
        drafts.resolve(5)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("device", "text", "problem"),
    [
        (
            "cuda",
            "own",
            "does not keep the bits on a GPU, .* or allow texts that differ .* with exact=no",
        ),
        ("cuda", "own+ends:2", "does not keep the bits on a GPU"),
        ("rehearsal", "first:2", "needs skipdec's kernels"),
        ("rehearsal", "own", "needs skipdec's kernels"),
    ],
)
def test_devices_refuse_what_they_cannot_run_or_promise(
    exported: Callable[..., Path], device: str, text: str, problem: str
) -> None:
    bundle = EngineBundle.open(exported("pre_norm"))
    drafts = draft_resolver(bundle, ExitSchedule.full(6), device=device)
    with pytest.raises(UsageError, match=problem):
        drafts.resolve(text)
    for allowed in ("lookup+own,exact=no", "own+ends:2,exact=no"):
        assert drafts.resolve(allowed) == parse_draft(allowed)


def test_a_draft_costs_the_bytes_that_it_reads(exported: Callable[..., Path]) -> None:
    manifest = EngineBundle.open(exported("pre_norm")).manifest
    whole = LayerPlan(tuple(range(6)))
    shares = [byte_share(manifest, LayerPlan(tuple(range(count)))) for count in (1, 3)]
    assert 1 / 6 < shares[0] < 0.5 < shares[1] < byte_share(manifest, whole) == 1
