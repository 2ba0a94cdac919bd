"""Drafts are resolved against a bundle: their layers, costs, ``auto`` and refusals."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from skipdec import UsageError
from skipdec.engines.bundle import EngineBundle
from skipdec.engines.manifest import Manifest
from skipdec.runtime.drafting.config import parse_draft
from skipdec.runtime.drafting.layers import byte_share, draft_plan
from skipdec.runtime.drafting.resolver import DraftResolver
from skipdec.runtime.schedule import LayerPlan


@pytest.fixture(scope="module")
def manifest(exported: Callable[..., Path]) -> Manifest:
    return EngineBundle.open(exported("pre_norm")).manifest


@pytest.mark.parametrize(
    ("text", "layers"), [("ends:1", (0,)), ("ends:3", (0, 10, 11)), ("first:3", (0, 1, 2))]
)
def test_a_part_runs_the_layers_it_names(text: str, layers: tuple[int, ...]) -> None:
    config = parse_draft(text)
    assert config is not None
    assert draft_plan(config.parts[0], 12).layers == layers


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("own+trained", "trained needs a draft layer, which the bundle does not have"),
        ("ends:6", "ends:6 runs 6 layers of 6; allowed: 1 to 5"),
    ],
)
def test_drafts_that_a_bundle_cannot_run_are_refused(
    manifest: Manifest, text: str, problem: str
) -> None:
    with pytest.raises(UsageError, match=problem):
        DraftResolver(manifest).resolve(text)


def test_a_text_is_resolved_once(manifest: Manifest) -> None:
    drafts = DraftResolver(manifest, default="own,exact=no")
    assert drafts.resolve() is drafts.resolve("own,exact=no")
    assert drafts.resolve("off") is None
    with pytest.raises(UsageError, match="is 5; allowed: a text"):
        drafts.resolve(5)  # type: ignore[arg-type]


@pytest.mark.parametrize("recommended", [None, "own", "lookup+ends:2", "off", "onw"])
def test_auto_is_the_manifests_draft_or_own(manifest: Manifest, recommended: str | None) -> None:
    exact = manifest.model_copy(update={"kernels": "skipdec", "draft": recommended})
    exact = exact.model_copy(
        update={
            "precision": exact.precision.model_copy(
                update={"quantize": "int8", "head_quantize": "int8"}
            )
        }
    )
    drafts = DraftResolver(exact)
    if recommended == "onw":
        with pytest.raises(UsageError, match="'onw' is unknown; did you mean 'own'"):
            drafts.resolve("auto")
    else:
        assert drafts.resolve(" Auto") == parse_draft(recommended or "own")


@pytest.mark.parametrize(
    ("device", "text", "problem"),
    [
        (
            "cuda:1",
            "own",
            "does not keep the bits on a GPU, .* or allow texts that differ .* with exact=no",
        ),
        ("cuda", "own+ends:2", "does not keep the bits on a GPU"),
        ("rehearsal", "first:2", "needs skipdec's kernels"),
        (None, "own", "needs skipdec's kernels"),
    ],
)
def test_devices_without_exact_drafts_need_exact_no(
    manifest: Manifest, device: str | None, text: str, problem: str
) -> None:
    drafts = DraftResolver(manifest, device)
    with pytest.raises(UsageError, match=problem):
        drafts.resolve(text)
    for allowed in ("lookup+own,exact=no", "own+ends:2,exact=no"):
        assert drafts.resolve(allowed) == parse_draft(allowed)


def test_a_draft_costs_the_bytes_it_reads(manifest: Manifest) -> None:
    whole = LayerPlan(tuple(range(6)))
    shares = [byte_share(manifest, LayerPlan(tuple(range(count)))) for count in (1, 3)]
    assert 1 / 6 < shares[0] < 0.5 < shares[1] < byte_share(manifest, whole) == 1
