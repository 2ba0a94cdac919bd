"""The real tritonserver survives disconnects, model changes under load, and a broken engine."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from triton_server import TritonServer, needs_environment, running

from skipdec import Generator, SamplingParams
from skipdec.runtime.serving.triton.check import check_triton_models
from skipdec.runtime.serving.triton.repository import write_triton_repository
from skipdec.runtime.serving.triton.settings import TritonRepositoryConfig

pytestmark = [pytest.mark.triton, pytest.mark.slow, needs_environment]
LONG = 4000  # tokens: this takes seconds, noticing a disconnect 0.05 s
PROMPT = "Ant is a pub"
BROKEN = """
from skipdec.runtime.scheduling.running_batch import RunningBatch
from skipdec.runtime.serving.triton.model import TritonPythonModel

def step(self):
    raise RuntimeError("a step broken on purpose")

RunningBatch.step = step
"""


@pytest.fixture(scope="module")
def bundle(checkpoint: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Export a bundle with room for long texts."""
    from text_bundles import STRUCTURE, copy_with_tokenizer

    from skipdec.exporter.config import ExportConfig
    from skipdec.exporter.pipeline.exporting import export

    folder = tmp_path_factory.mktemp("long")
    source = copy_with_tokenizer(checkpoint(STRUCTURE), folder / "checkpoint")
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(
        json.dumps(config | {"max_position_embeddings": LONG + 96, "num_hidden_layers": 2})
    )
    output = folder / "bundle"
    export(ExportConfig(model=str(source), output=output, load_format="dummy", verify=False))
    return output


@pytest.fixture(scope="module")
def server(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    repository = tmp_path_factory.mktemp("models")
    for name in ("steady", "coming", "broken"):
        write_triton_repository(
            TritonRepositoryConfig(
                bundles=(bundle,), output=repository, name=name, threads=1, max_batch_size=2
            )
        )
    (repository / "broken" / "1" / "model.py").write_text(BROKEN)
    with running(repository, "--model-control-mode=explicit", "--load-model=steady") as started:
        yield started


def ask(server: TritonServer, model: str, max_tokens: int = 12) -> dict[str, Any]:
    return server.generate(
        model,
        text_input=PROMPT,
        max_tokens=max_tokens,
        sampling_parameters='{"ignore_eos": true, "temperature": 0}',
    )


def test_a_disconnect_of_an_sse_client_ends_its_text(server: TritonServer) -> None:
    body = {"text_input": PROMPT, "stream": True, "max_tokens": LONG}
    before = server.metric("skipdec_generation_tokens_total", model="steady")
    events = server.generate_stream(
        "steady", **body, sampling_parameters='{"ignore_eos": true, "temperature": 0}'
    )
    next(events)
    events.close()
    later_requests = 0
    while server.metric("skipdec_requests_running", model="steady") or not later_requests:
        assert "text_output" in ask(server, "steady", 1)
        later_requests += 1
    made = server.metric("skipdec_generation_tokens_total", model="steady") - before
    assert made - later_requests < LONG / 2
    assert server.metric("skipdec_kv_bytes", model="steady", kind="reserved") == 0


def test_a_model_with_all_slots_in_use_is_alive_at_once(server: TritonServer) -> None:
    body = {"text_input": PROMPT, "stream": True, "max_tokens": LONG}
    texts = [
        server.generate_stream(
            "steady", **body, sampling_parameters='{"ignore_eos": true, "temperature": 0}'
        )
        for _ in range(2)
    ]
    for text in texts:
        next(text)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(ask, server, "steady", 1)
        (found,) = check_triton_models(f"http://{server.http}", ["steady"])
        assert found.problem is None
        assert not waiting.done(), "a slot became free"
        for text in texts:
            text.close()
        assert "text_output" in waiting.result()


def test_loading_and_unloading_under_load_hangs_no_request(
    server: TritonServer, bundle: Path
) -> None:
    with Generator.open(bundle, threads=1) as generator:
        params = SamplingParams(max_tokens=12, temperature=0, ignore_eos=True)
        text = generator.generate([PROMPT], params)[0].outputs[0].text
    with ThreadPoolExecutor(8) as pool:
        answers = []
        for _ in range(3):
            assert server.post("/v2/repository/models/coming/load")[0] == 200
            answers += [pool.submit(ask, server, name) for name in ("coming", "steady") * 12]
            answers[-24].result(60)
            assert server.post("/v2/repository/models/coming/unload")[0] == 200
        found = [one.result(60) for one in answers]
    assert {one["text_output"] for one in found[1::2]} == {text}
    assert {one["text_output"] for one in found[::2] if "error" not in one} == {text}
    assert all("coming" in one["error"] for one in found[::2] if "error" in one)


def test_a_failed_engine_thread_answers_all_with_an_error(
    server: TritonServer,
) -> None:
    assert server.post("/v2/repository/models/broken/load")[0] == 200
    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(lambda _: ask(server, "broken"), range(6)))
    assert all("broken on purpose" in answer["error"] for answer in answers)
    assert "text_output" in ask(server, "steady")
    assert server.post("/v2/repository/models/broken/unload")[0] == 200
