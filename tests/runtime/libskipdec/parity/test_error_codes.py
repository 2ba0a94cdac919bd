"""Both runtimes refuse bad input with the same code, and libskipdec names the problem."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from attack.readers import code_of
from runtimes import native_refusal, run_native
from text_bundles import STRUCTURE, export_text_bundle

from skipdec import Generator, SamplingParams
from skipdec.engines.errors import SkipDecError

OPTIONS = {"max_batch_size": 4, "kv_memory": 1 << 16}


@dataclass(frozen=True)
class BadRequest:
    """A bad request, and a part of libskipdec's error message."""

    words: str
    prompt: str | Sequence[int] = (5, 6, 7)
    continuation: Sequence[int] | None = None  # to score
    schedule: str = "full"
    params: Mapping[str, Any] = field(default_factory=dict)
    draft: str | None = None

    def line(self) -> dict[str, Any]:
        """Return the request for programs/generate.cpp."""
        params = self.params if self.draft is None else {**self.params, "draft": self.draft}
        made = {"prompt": self.prompt, "schedule": self.schedule, "params": params}
        return made if self.continuation is None else {**made, "continuation": self.continuation}


def bad_params(words: str, **params: object) -> BadRequest:
    return BadRequest(words, params=params)


REQUESTS = (
    bad_params("temperature is -1; allowed: a number from 0", temperature=-1.0),
    bad_params("top_k is -2", top_k=-2),
    bad_params("top_p is 0; allowed: a number above 0", top_p=0.0),
    bad_params("min_p is 1.5", min_p=1.5),
    bad_params("repetition_penalty is 0", repetition_penalty=0.0),
    bad_params("presence_penalty is 3", presence_penalty=3.0),
    bad_params("frequency_penalty is -3", frequency_penalty=-3.0),
    bad_params("n is 0", n=0),
    bad_params("n is 1025", n=1025),
    bad_params("min_tokens is -1", min_tokens=-1),
    bad_params("min_tokens is 17; allowed: 0 to max_tokens", min_tokens=17),
    bad_params("n is 2 with temperature 0", n=2, temperature=0.0),
    bad_params("stop is ''", stop=[""]),
    bad_params("stop is 65 strings", stop=["x"] * 65),
    bad_params("stop is 'xxx", stop=["x" * 1025]),
    bad_params("stop_token_ids is -1", stop_token_ids=[-1]),
    bad_params("2 problems", n=0, top_p=7.0),
    bad_params("stop_token_ids has 300; allowed: 0 to 299", stop_token_ids=[300]),
    bad_params("logprobs is 301; the vocabulary has 300 tokens", logprobs=301),
    bad_params("logprobs is -5; allowed: an integer from 0", logprobs=-5),
    bad_params("max_tokens is -4; allowed: an integer from 1", max_tokens=-4),
    bad_params("the bundle holds 64 positions", max_tokens=62),
    bad_params("n | is 5; the engine runs up to 4 rows", n=5),
    bad_params("kv_memory allows 65,536", n=4, max_tokens=60),
    BadRequest("prompt", prompt=()),
    BadRequest("-1", prompt=(5, -1)),
    BadRequest("300", prompt=(5, 300)),
    BadRequest("65", prompt=(5,) * 65),
    BadRequest("prompt", prompt="x" * 1000),
    BadRequest("continuation", continuation=()),
    BadRequest("300", continuation=(300,)),
    BadRequest("continuation", continuation=(5,) * 65),
    BadRequest("prompt", prompt=(), continuation=(5,)),
    BadRequest("80", prompt=(5,) * 40, continuation=(5,) * 40),
    BadRequest("horizon", schedule="2x:horizon=0"),
    BadRequest("65", schedule="2x:horizon=65"),
    BadRequest("schedule 'lineer' | is unknown", schedule="lineer"),
    BadRequest("2x:horizn=4", schedule="2x:horizn=4"),
    BadRequest("full:horizon=3", schedule="full:horizon=3"),
    BadRequest("schedule | is not JSON", schedule="{"),
    BadRequest("schedule | is empty", schedule=""),
    BadRequest("schedule | is empty", continuation=(5,), schedule=""),
    BadRequest("draft | is 'own'; allowed in a request: off", draft="own"),
    BadRequest("draft | is empty", draft=""),
)


@pytest.fixture(scope="module")
def answers(text_bundle: Path) -> Sequence[Mapping[str, str]]:
    """Return libskipdec's answer to each of REQUESTS, in order."""
    return run_native(text_bundle, [each.line() for each in REQUESTS], **OPTIONS)


@pytest.fixture(scope="module")
def generator(text_bundle: Path) -> Iterator[Generator]:
    with Generator.open(text_bundle, threads=1, **OPTIONS) as generator:
        yield generator


def submit(generator: Generator, case: BadRequest) -> None:
    if case.continuation is not None:
        generator.score([case.prompt], [case.continuation], schedule=case.schedule)
        return
    with generator.running_batch() as batch:
        params = SamplingParams(**case.params)
        batch.add(case.prompt, params, schedule=case.schedule, draft=case.draft)


@pytest.mark.parametrize("index", range(len(REQUESTS)), ids=lambda index: str(REQUESTS[index]))
def test_both_refuse_bad_requests(
    generator: Generator, answers: Sequence[Mapping[str, str]], index: int
) -> None:
    with pytest.raises(SkipDecError) as refused:
        submit(generator, REQUESTS[index])
    assert answers[index]["code"] == code_of(refused.value), answers[index]
    assert REQUESTS[index].words in answers[index]["error"]


# 0 means all processors in C, None in Python.
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_batch_size": 0}, "max_batch_size is 0"),
        ({"max_batch_size": 65537}, "max_batch_size is 65537"),
        ({"max_waiting": 0}, "max_waiting is 0"),
        ({"max_prefill_tokens": 15}, "max_prefill_tokens is 15"),
        ({"max_model_len": 65}, "max_model_len is 65"),
        ({"threads": 100_000}, "threads is 100000"),
        ({"threads": -1}, "threads is -1"),
        ({"schedule": "lineer"}, "schedule 'lineer' is unknown"),
        ({"schedule": ""}, "schedule is empty"),
        ({"admission": "gangs"}, "gangs"),
        ({"admission": "gang:least=3"}, "least"),
        ({"admission": "gang:min_free=x"}, "min_free"),
        ({"admission": "fcfs:min_free=2"}, "min_free"),
        ({"admission": "gang:hold_ms=1234567890"}, "hold_ms"),
        ({"admission": "gang:hold_ms=1,hold_ms=1"}, "hold_ms is given twice"),
        ({"draft": ""}, "draft is empty"),
        ({"draft": "own+owl,tokens=9"}, "'owl' is unknown"),
        ({"draft": "own+off"}, "off"),
        ({"draft": "own+own"}, "own"),
        ({"draft": "ends:3+own"}, "ends:3"),
        ({"draft": "ends"}, "ends"),
        ({"draft": "own:3"}, "own:3"),
        ({"draft": "own,exact=maybe"}, "exact"),
        ({"draft": "own,tokens=4,tokens=5"}, "tokens is given twice"),
        ({"draft": "o" * 1200}, "1,200 characters"),
        ({"draft": "trained,exact=no"}, "trained needs a draft layer"),
    ],
    ids=str,
)
def test_both_refuse_bad_options(text_bundle: Path, options: dict[str, Any], words: str) -> None:
    check_refusal(text_bundle, options, words)


def test_both_refuse_drafts_if_onnxruntime_multiplies_weights(
    checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    bundle = export_text_bundle(checkpoint(STRUCTURE), tmp_path, quantize="int4", block_size=16)
    check_refusal(bundle, {"draft": "own"}, "int4")


def check_refusal(bundle: Path, options: dict[str, Any], words: str) -> None:
    batch_options = {
        name: options[name] for name in ("admission", "max_model_len") if name in options
    }
    bundle_options = {"threads": 1} | {
        name: options[name] for name in options.keys() - batch_options.keys()
    }
    with (
        pytest.raises(SkipDecError) as refused,
        Generator.open(bundle, **bundle_options) as generator,
        generator.running_batch(**batch_options),
    ):
        pass
    code, native = native_refusal(bundle, **options)
    assert code == code_of(refused.value), native
    assert words in native.replace(" | ", " ", 1)
