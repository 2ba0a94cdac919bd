"""The real tritonserver serves texts by HTTP, SSE and gRPC, cancels and refuses requests."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import monotonic

import pytest
from attack.processes import child_processes
from command_line import run
from triton_server import Stream, TritonServer, needs_environment, running

from skipdec import Generator, RequestOutput, SamplingParams
from skipdec.runtime.serving.triton.check import check_triton_models
from skipdec.runtime.serving.triton.repository import write_triton_repository
from skipdec.runtime.serving.triton.settings import TritonRepositoryConfig

pytestmark = [pytest.mark.triton, pytest.mark.slow, needs_environment]
PROMPT, LONG = "Ant is a pub", 40
OPTIONS = ("--model-control-mode=explicit", "--load-model=tiny")


@pytest.fixture(scope="module")
def bundle(text_bundle: Path) -> Path:
    return text_bundle


@pytest.fixture(scope="module")
def repository(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    written = tmp_path_factory.mktemp("models")
    for name in ("tiny", "other"):
        write_triton_repository(
            TritonRepositoryConfig(
                bundles=(bundle,), output=written, name=name, threads=1, max_batch_size=2
            )
        )
    return written


@pytest.fixture(scope="module")
def server(repository: Path) -> Iterator[TritonServer]:
    with running(repository, *OPTIONS) as started:
        yield started


def alone(bundle: Path, *, schedule: str | None = None, **params: object) -> RequestOutput:
    with Generator.open(bundle, threads=1) as generator:
        return generator.generate([PROMPT], SamplingParams(**params), schedule=schedule)[0]  # type: ignore[arg-type]


def test_generate_answers_with_the_generators_text(server: TritonServer, bundle: Path) -> None:
    expected = alone(bundle, schedule="2x", max_tokens=9, temperature=0.8, seed=7)
    answer = server.generate(
        "tiny",
        text_input=PROMPT,
        schedule="2x",
        max_tokens=9,
        sampling_parameters='{"temperature": 0.8, "seed": "7"}',
        return_token_ids=True,
        return_layers_per_token=True,
        return_finish_reason=True,
        return_schedule=True,
        return_num_input_tokens=True,
    )
    (completion,) = expected.outputs
    assert answer["text_output"] == completion.text
    assert tuple(answer["token_ids"]) == completion.token_ids
    assert tuple(answer["layers_per_token"]) == completion.layers_per_token
    assert answer["finish_reason"] == completion.finish_reason
    assert answer["schedule"] == expected.schedule
    assert answer["num_input_tokens"] == len(expected.prompt_token_ids)


def test_a_32_bit_temperature_samples_as_its_decimal_value(
    server: TritonServer, bundle: Path
) -> None:
    stream = Stream(server, "tiny", text_input=PROMPT, temperature=0.8, max_tokens=20,
                    sampling_parameters='{"seed": 3}', return_token_ids=True)  # fmt: skip
    (result,) = stream.results()
    expected = alone(bundle, temperature=0.8, max_tokens=20, seed=3).outputs[0]
    assert tuple(result.as_numpy("token_ids")) == expected.token_ids


def flat(layers: list[int] | list[list[int]]) -> tuple[int, ...]:
    """Return the layers of all pieces in sequence; Triton's JSON unpacks a list of one."""
    return tuple(x for some in layers for x in (some if isinstance(some, list) else [some]))


@pytest.mark.parametrize("transport", ["sse", "grpc"])
def test_a_stream_of_several_pieces_joins_to_the_whole_text(
    server: TritonServer, bundle: Path, transport: str
) -> None:
    body = {"text_input": PROMPT, "stream": True, "max_tokens": LONG, "temperature": 0.0}
    expected = alone(bundle, max_tokens=LONG, temperature=0).outputs[0]
    until = monotonic() + 60
    pieces: list[str] = []
    while len(pieces) < 2:  # a fast server sends all ready tokens as one piece
        assert monotonic() < until, "every stream came in one piece"
        if transport == "sse":
            events = list(server.generate_stream("tiny", **body, return_layers_per_token=True))
            pieces = [one["text_output"] for one in events]
            layers = [one["layers_per_token"] for one in events]
        else:
            results = list(Stream(server, "tiny", **body, return_layers_per_token=True).results())
            pieces = [one.as_numpy("text_output")[0].decode() for one in results]
            layers = [one.as_numpy("layers_per_token").tolist() for one in results]
        assert "".join(pieces) == expected.text
        assert all(pieces[:-1])
        assert flat(layers) == expected.layers_per_token


def test_concurrent_requests_get_the_texts_that_each_gets_alone(
    server: TritonServer, bundle: Path
) -> None:
    schedules = ["full", "2x", "full", "2x", "full", "2x"]

    def ask(schedule: str) -> str:
        text: str = server.generate(
            "tiny", text_input=PROMPT, schedule=schedule, max_tokens=12, temperature=0.0
        )["text_output"]
        return text

    with ThreadPoolExecutor(6) as pool:
        texts = list(pool.map(ask, schedules))
    expected = {
        name: alone(bundle, schedule=name, max_tokens=12, temperature=0).outputs[0].text
        for name in set(schedules)
    }
    assert texts == [expected[name] for name in schedules]


@pytest.mark.parametrize(
    ("inputs", "problem"),
    [
        ({"text_input": "a", "max_tokens": -1}, "max_tokens is -1"),
        ({"text_input": "a", "schedule": "3y"}, "schedule"),
        ({"max_tokens": 1}, "text_input, input_ids and messages"),
        ({"text_input": "a", "max_tokes": 1}, "max_tokes | is unknown"),
        ({"text_input": "a", "sampling_parameters": '{"tempratur": 1}'}, "tempratur"),
    ],
)
def test_an_invalid_request_is_refused_and_the_next_one_answered(
    server: TritonServer, inputs: dict[str, object], problem: str
) -> None:
    assert problem in server.generate("tiny", **inputs)["error"]
    assert "text_output" in server.generate("tiny", text_input=PROMPT, max_tokens=1)


def test_a_grpc_cancellation_ends_running_and_waiting_requests(server: TritonServer) -> None:
    body = {"text_input": PROMPT, "stream": True, "max_tokens": LONG, "temperature": 0.0}

    def finished_requests() -> float:
        before = server.metric("skipdec_request_success_total", model="tiny")
        stream = Stream(server, "tiny", **body)
        for _ in range(60):
            stream.ask(**body)
        assert stream.next()[1] is None
        stream.close(cancel=True)
        assert "text_output" in server.generate("tiny", text_input=PROMPT, max_tokens=1)
        return server.metric("skipdec_request_success_total", model="tiny") - before

    until = monotonic() + 60
    while finished_requests() >= 50:  # a slow client may cancel after the last answer
        assert monotonic() < until
    names = ("skipdec_requests_running", "skipdec_requests_waiting")
    while any(server.metric(name, model="tiny") for name in names):
        assert monotonic() < until  # Triton passes cancellations on one by one
        server.generate("tiny", text_input=PROMPT, max_tokens=1)  # updates metrics


def test_metrics_count_tokens_and_times(server: TritonServer) -> None:
    names = ("skipdec_generation_tokens_total", "skipdec_time_to_first_token_seconds_count")
    before = [server.metric(name, model="tiny") for name in names]
    server.generate("tiny", text_input=PROMPT, max_tokens=7, temperature=0.0)
    after = [server.metric(name, model="tiny") for name in names]
    assert after == [before[0] + 7, before[1] + 1]


def test_a_model_that_drafts_generates_the_same_texts(
    server: TritonServer, int8_bundle: Path
) -> None:
    (model,) = write_triton_repository(
        TritonRepositoryConfig(
            bundles=(int8_bundle,),  # whose drafts are exact
            output=server.repository,
            name="drafting",
            threads=1,
            draft="own,adapt=no",
        )
    )
    assert (
        'key: "draft" value { string_value: "own,adapt=no" }'
        in (model / "config.pbtxt").read_text()
    )
    assert server.post("/v2/repository/models/drafting/load")[0] == 200
    body = {"text_input": PROMPT, "max_tokens": LONG, "temperature": 0.0}
    wanted = {"return_num_draft_tokens": True, "return_num_accepted_draft_tokens": True}
    expected = alone(int8_bundle, max_tokens=LONG, temperature=0).outputs[0]
    names = ("skipdec_draft_tokens_total", "skipdec_accepted_draft_tokens_total")
    counts = [0, 0]
    for _ in range(2):  # the second time with n-grams of the first
        answer = server.generate("drafting", **body, **wanted)
        assert answer["text_output"] == expected.text
        counts[0] += answer["num_draft_tokens"]
        counts[1] += answer["num_accepted_draft_tokens"]
    assert [server.metric(name, model="drafting") for name in names] == counts
    assert 0 < counts[1] <= counts[0]
    observed = server.metric("skipdec_accepted_of_a_pass_sum", model="drafting")
    assert observed == counts[1]
    off = server.generate("drafting", **body, **wanted, draft="off")
    assert (off["text_output"], off["num_draft_tokens"]) == (expected.text, 0)
    assert "allowed in a request: off" in server.generate("drafting", **body, draft="own")["error"]
    results = list(Stream(server, "drafting", **body, **wanted, stream=True).results())
    drafted = [int(one.as_numpy("num_draft_tokens")[0]) for one in results]
    assert drafted[-1] > 0
    assert not any(drafted[:-1]), "drafts are counted once the text has ended"
    assert server.post("/v2/repository/models/drafting/unload")[0] == 200


def write_chat_model(server: TritonServer, bundle: Path, name: str) -> Path:
    """Write a chat bundle's model into the server's repository and return it."""
    (model,) = write_triton_repository(
        TritonRepositoryConfig(bundles=(bundle,), output=server.repository, name=name, threads=1)
    )
    return model


def test_a_chat_is_answered_with_the_generators_text(
    server: TritonServer, chat_bundle: Path
) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "</s>"}]
    with Generator.open(chat_bundle, threads=1) as generator:
        (expected,) = generator.chat(messages, SamplingParams(max_tokens=12, temperature=0))
    write_chat_model(server, chat_bundle, "chat")
    assert server.post("/v2/repository/models/chat/load") == (200, None)
    body = {"messages": json.dumps(messages), "max_tokens": 12, "temperature": 0.0}
    answer = server.generate("chat", **body, return_num_input_tokens=True)
    assert answer["text_output"] == expected.outputs[0].text
    assert answer["num_input_tokens"] == len(expected.prompt_token_ids)
    results = Stream(server, "chat", **body, stream=True).results()
    pieces = [one.as_numpy("text_output")[0].decode() for one in results]
    assert "".join(pieces) == expected.outputs[0].text
    refused = server.generate("chat", messages='[{"role": "cook", "content": ""}]')["error"]
    assert "has role 'cook' at 0" in refused
    assert "the bundle has none" in server.generate("tiny", **body)["error"]
    assert server.post("/v2/repository/models/chat/unload")[0] == 200


def test_a_chat_template_without_jinja_is_refused_at_loading(
    server: TritonServer, chat_bundle: Path
) -> None:
    program = write_chat_model(server, chat_bundle, "without-jinja") / "1" / "model.py"
    missing = 'import sys\n\nsys.modules["jinja2"] = None\n'
    program.write_text(missing + program.read_text())
    status, answer = server.post("/v2/repository/models/without-jinja/load")
    assert status == 400
    assert re.search(r"chat template of \S+ \| needs jinja2, not installed here", answer["error"])


def test_a_model_is_loaded_and_unloaded_beside_a_running_one(server: TritonServer) -> None:
    assert server.post("/v2/repository/models/other/load")[0] == 200
    assert "text_output" in server.generate("other", text_input=PROMPT, max_tokens=2)
    assert [one.model for one in check_triton_models(f"http://{server.http}")] == ["other", "tiny"]
    assert server.post("/v2/repository/models/other/unload")[0] == 200
    assert "text_output" in server.generate("tiny", text_input=PROMPT, max_tokens=2)


def test_an_invalid_parameter_is_refused_at_loading(
    server: TritonServer, bundle: Path, tmp_path: Path
) -> None:
    (model,) = write_triton_repository(
        TritonRepositoryConfig(
            bundles=(bundle,), output=tmp_path, name="wrong", threads=1, admission="fcfs"
        )
    )
    text = (model / "config.pbtxt").read_text().replace('"fcfs"', '"lifo"')
    (model / "config.pbtxt").write_text(text)
    model.rename(server.repository / "wrong")
    status, answer = server.post("/v2/repository/models/wrong/load")
    assert status == 400
    assert "lifo" in answer["error"]


def test_a_killed_stub_is_found_by_check_and_replaced_by_loading(repository: Path) -> None:
    for _ in range(3):  # rarely, tritonserver 2.51 itself dies with its stub
        with running(repository, *OPTIONS) as own:
            url = f"http://{own.http}"
            assert [one.problem for one in check_triton_models(url, ["tiny"])] == [None]
            for stub in child_processes(own.process.pid):
                os.kill(stub, signal.SIGKILL)
            (dead,) = check_triton_models(url, ["tiny"])
            assert dead.problem
            checked = run("triton", "check", url)
            assert checked.exit_code == 1
            if "does not list its models" in checked.output:
                own.process.wait(timeout=60)
                continue
            assert "tiny can't generate a token" in checked.output
            assert own.post("/v2/repository/index")[0] == 200
            own.post("/v2/repository/models/tiny/unload")
            assert own.post("/v2/repository/models/tiny/load")[0] == 200
            assert [one.problem for one in check_triton_models(url, ["tiny"])] == [None]
            return
    pytest.fail("tritonserver died with its stub each time")
