"""libskipdec drafts like Python with a trained layer, and with the model's and a narrow head."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from draft_layers import write_draft_layer
from drafted_requests import BASE, drafts_of, draw_prompt, of_every_kind
from literal_entries import LiteralDrafts
from programs import built_program
from runtimes import LIBRARY, NativeRuntime, TimedRequest, both, run_native

from skipdec import Generator
from skipdec.engines.errors import SkipDecError
from skipdec.engines.kernels.library import find_library
from skipdec.exporter.config import ExportConfig
from skipdec.exporter.pipeline.exporting import export

pytestmark = pytest.mark.skipif(find_library() is None, reason="the kernels were not compiled")

HEAD = 64
RECOMMENDED = "trained,tokens=2,adapt=no"
SCHEDULES = ("full", "linear:max=5,min=3,warmup=2,horizon=12")
PROMPTS = [draw_prompt(length) for length in (30, 1)]


def requests_for(schedule: str) -> list[TimedRequest]:
    """Return requests of every kind, and four of them again once n-grams know their texts."""
    once = of_every_kind(PROMPTS, schedule)
    return once + once[:4]


@pytest.fixture(scope="module", params=[(None, HEAD), ((1, 4, 6), 0)])
def bundle(
    checkpoint: Callable[[str], Path],
    tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
) -> Path:
    """Return a bundle with a draft layer that reads several states; one has a narrow head too."""
    (reads, head), folder = request.param, tmp_path_factory.mktemp("trained")
    model = str(checkpoint("pre_norm"))
    layer = write_draft_layer(folder / "layer", model, reads)
    output = folder / "bundle"
    config = {"quantize": "int8", "kernels": "skipdec", "draft_head": head, "verify": False}
    drafts = {"draft": RECOMMENDED, "draft_layer": layer}
    export(ExportConfig(model=model, output=output, **drafts, **config))
    return output


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("draft", ["trained", "own+trained,tokens=3", "ends:2"])
def test_both_draft_the_same_tokens(bundle: Path, schedule: str, draft: str) -> None:
    fixed = f"{draft},adapt=no"
    with both(bundle, draft=fixed) as (python, native):
        expected = python.run(requests_for(schedule))
        given = native.run(requests_for(schedule), draft=fixed)
    assert given == expected
    assert drafts_of(given) == drafts_of(expected)
    assert sum(drafted for _, drafted, _ in drafts_of(given)) > 300


def test_guesses_equal_those_of_a_literal_computation(bundle: Path) -> None:
    """Rows run together after passes that accepted different numbers of tokens."""
    texts = [
        {"prompt": draw_prompt(length), "completion": draw_prompt(60 - length)}
        for length in (20, 1, 9, 4, 16)
    ]
    done = subprocess.run(
        [built_program("trained_guesses"), bundle],
        input="".join(json.dumps(text) + "\n" for text in texts),
        env=os.environ | {"SKIPDEC_ONNXRUNTIME": str(LIBRARY)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found, literal = json.loads(done.stdout), LiteralDrafts(bundle)
    assert len(found) > 40
    for one in found:
        assert literal.guess(one["text"], one["entries"], 3) == one["guesses"]


@pytest.mark.parametrize("draft", ["trained", "off"])
def test_both_compute_the_same_kv_memory_of_a_request(bundle: Path, draft: str) -> None:
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


def test_both_resolve_auto_to_the_recommended_drafts(bundle: Path) -> None:
    requests = requests_for("full")[:4]
    native = NativeRuntime(bundle, 6)
    with both(bundle, draft="auto") as (python, _):
        expected = python.run(requests)
    for text in (" Auto", RECOMMENDED):
        assert drafts_of(native.run(requests, draft=text)) == drafts_of(expected)
    assert sum(drafted for _, drafted, _ in drafts_of(expected)) > 0
