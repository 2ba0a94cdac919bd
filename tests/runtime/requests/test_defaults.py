"""Every kind of request takes omitted parameters from the bundle."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bundle_documents import edit
from command_line import run
from text_bundles import STRUCTURE, export_chat_bundle

from skipdec import Generator, SamplingParams, UsageError
from skipdec.runtime.requests.records import Record, read_record
from skipdec.runtime.serving.http.chat import ChatRequest
from skipdec.runtime.serving.http.protocol import CompletionRequest
from skipdec.runtime.serving.triton.tensors import TritonRequest

DEFAULTS = {"temperature": 0.0, "repetition_penalty": 1.5}
CHAT = {"messages": [{"role": "user", "content": "Hi"}]}


@pytest.fixture(scope="module")
def bundle(checkpoint: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    exported = export_chat_bundle(checkpoint(STRUCTURE), tmp_path_factory.mktemp("defaults"))
    change = {"sampling_defaults": DEFAULTS}
    edit(exported, "manifest.json", lambda manifest: manifest["model"].update(change))
    return exported


def test_python_and_the_command_use_the_bundles_defaults(
    bundle: Path, own_thread_pools: None
) -> None:
    fixed = SamplingParams.fixed(**DEFAULTS, max_tokens=8)
    with Generator.open(bundle, threads=1) as generator:
        (expected,) = generator.generate(["a"], fixed)
        assert expected.outputs[0].token_ids == (
            generator.generate(["a"], SamplingParams(max_tokens=8))[0].outputs[0].token_ids
        )
        (request,) = generator.make_requests(["a"], SamplingParams(temperature=0.5))
        assert (request.params.temperature, request.params.repetition_penalty) == (0.5, 1.5)
        with pytest.raises(UsageError, match="n is 2 with temperature 0"):
            generator.make_requests(["a"], SamplingParams(n=2))
    arguments = ["generate", str(bundle), "-p", "a", "--max-tokens", "8", "--json"]
    shown = run(*arguments).stdout
    assert json.loads(shown)["results"][0]["token_ids"] == list(expected.outputs[0].token_ids)
    shown = run("inspect", bundle).stdout
    assert "sampling unless a request says otherwise: temperature 0, repetition_pen" in shown


def test_a_chat_without_max_tokens_may_fill_the_context(bundle: Path) -> None:
    with Generator.open(bundle, threads=1) as generator:
        for params, expected in ((SamplingParams(), None), (SamplingParams(max_tokens=16), 16)):
            text, chat = generator.make_requests(["a", CHAT], params)
            assert text.max_tokens == 16
            room = generator.model.max_seq_len - len(chat.prompt_token_ids)
            assert chat.max_tokens == (expected or room)


def test_every_kind_of_request_records_its_given_parameters() -> None:
    line = read_record(1, {"prompt": "a", "top_k": 3}, SamplingParams(top_p=0.9))
    assert isinstance(line, Record)
    assert line.params.given == {"top_k": 3, "top_p": 0.9}
    body = b'{"prompt": "a", "top_p": 0.5, "temperature": null}'
    assert CompletionRequest.parse(body).params.given == {"max_tokens": 16, "top_p": 0.5}
    chat: dict[str, Any] = {**CHAT, "seed": 1}
    assert ChatRequest.parse(json.dumps(chat).encode()).params.given == {
        "max_tokens": None,
        "seed": 1,
    }
    tensors = {"text_input": np.array([b"a"], object), "top_k": np.array([2], np.int32)}
    assert TritonRequest.from_tensors(tensors).params.given == {"top_k": 2}
