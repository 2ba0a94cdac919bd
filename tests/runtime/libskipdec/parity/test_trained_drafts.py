"""libskipdec drafts by the bundle's own layer and by its narrow head as Python does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from draft_layers import write_draft_layer
from drafted_requests import BASE, drafts_of, draw_prompt, of_every_kind, side_by_side
from runtimes import Asked, NativeRuntime, both, native_error, run_native

from skipdec import Generator, write_draft
from skipdec.engines.errors import SkipDecError
from skipdec.engines.kernels.library import find_library
from skipdec.exporter.config import ExportConfig
from skipdec.exporter.pipeline.exporting import export

pytestmark = pytest.mark.skipif(find_library() is None, reason="the kernels were not compiled")

HEAD = 64
SCHEDULES = ("full", "linear:max=5,min=3,warmup=2,horizon=12")  # layers 0 and 1 always run
PROMPTS = [draw_prompt(length) for length in (30, 1)]


def asked(schedule: str) -> list[Asked]:
    """Return requests of every kind, the last ones of texts that n-grams know."""
    once = of_every_kind(PROMPTS, schedule)
    return once + once[:4]


@pytest.fixture(scope="module", params=[1, 2])
def bundle(
    checkpoint: Callable[[str], Path],
    tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
) -> Path:
    """Return a bundle with a narrow head, and a draft layer behind one or two layers."""
    folder = tmp_path_factory.mktemp("trained")
    model = str(checkpoint("pre_norm"))
    layer = write_draft_layer(folder / "layer", model, request.param)
    output = folder / "bundle"
    config = {"quantize": "int8", "kernels": "skipdec", "draft_head": HEAD, "verify": False}
    export(ExportConfig(model=model, output=output, draft=layer, **config))
    return output


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(
    "draft", ["trained", f"own+trained,tokens=3,head={HEAD}", f"ends:2,head={HEAD}"]
)
def test_both_draft_alike_token_by_token(bundle: Path, schedule: str, draft: str) -> None:
    fixed = f"{draft},adapt=no"
    with both(bundle, draft=fixed) as (python, native):
        expected = python.run(asked(schedule))
        given = native.run(asked(schedule), draft=fixed)
    assert given == expected
    assert drafts_of(given) == drafts_of(expected)
    assert sum(drafted for _, drafted, _ in drafts_of(given)) > 300


@pytest.mark.parametrize("draft", ["trained,adapt=no", f"own+trained,head={HEAD}"])
def test_texts_together_with_drafts_are_those_without(bundle: Path, draft: str) -> None:
    native = NativeRuntime(bundle, 6)
    requests = side_by_side(map(asked, SCHEDULES), draft)
    options = {"max_batch_size": 5, "kv_memory": 3_000_000}
    assert native.run(requests, draft=draft, **options) == native.run(requests, **options)


@pytest.mark.parametrize("draft", ["trained", "off"])
def test_both_count_the_draft_layers_memory_of_a_request(bundle: Path, draft: str) -> None:
    params = BASE.model_copy(update={"max_tokens": 30})
    line = {"prompt": PROMPTS[0], "params": {"max_tokens": 30}}
    (answer,) = run_native(bundle, [line], draft=draft, kv_memory=1 << 14)
    with (
        Generator.open(bundle, threads=1, draft=draft, kv_memory=1 << 14) as generator,
        pytest.raises(SkipDecError) as refused,
    ):
        generator.generate([PROMPTS[0]], params)
    assert "bytes of KV cache; kv_memory allows 16,384" in answer["error"]
    assert answer["error"].split(" | ")[1] == str(refused.value).split(" | ")[1]


def test_both_refuse_a_head_that_the_bundle_does_not_have(bundle: Path) -> None:
    with pytest.raises(SkipDecError) as refused:
        Generator.open(bundle, threads=1, draft="trained,head=65")
    assert native_error(bundle, draft="trained,head=65") == str(refused.value)
    assert str(refused.value) == "draft | head is 65; allowed: 64, the bundle's narrow head"


def test_auto_drafts_what_the_bundle_recommends(bundle: Path) -> None:
    requests = asked("full")[:4]
    native = NativeRuntime(bundle, 6)
    path = bundle / "draft.json"
    path.unlink(missing_ok=True)
    assert drafts_of(native.run(requests, draft="auto")) != [(23, 0, 0)] * 4  # own
    recommended = f"trained,adapt=no,head={HEAD}"
    write_draft(bundle, recommended)
    found = native.run(requests, draft=" Auto")
    assert drafts_of(found) == drafts_of(native.run(requests, draft=recommended))
    write_draft(bundle, "off")
    assert drafts_of(native.run(requests, draft="auto")) == [(23, 0, 0)] * 4


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda text: text.replace('"own"', '"own+ends:3"'), "digest"),
        (lambda text: "{", "draft.json"),
    ],
)
def test_a_damaged_recommendation_is_refused_where_it_is_wanted(
    bundle: Path, change: Callable[[str], str], words: str
) -> None:
    write_draft(bundle, "own")
    path = bundle / "draft.json"
    path.write_text(change(path.read_text()))
    message = native_error(bundle, draft="auto")
    assert words in message
    assert message.endswith("write it with 'skipdec draft set'")
    assert run_native(bundle, [], draft="own") == []
    path.unlink()
