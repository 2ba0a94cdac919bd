"""Both runtimes refuse the same bad input with the same sentence.

`words` removes what differs by design: Python's subject names the call or the options' class,
libskipdec's the argument itself. Other differences are listed as the key words of a case.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from attack.readers import DOCUMENTS, OPEN, NativeReader, python_verdict
from bundle_documents import Edit, add_drafts, edit
from runtimes import native_error, run_native

from skipdec import Generator, SamplingParams
from skipdec.engines.errors import SkipDecError

OPTIONS = {"max_batch_size": 4, "kv_memory": 1 << 16}
_SUBJECT = re.compile(r"^(generate|score|OpenOptions) \| ")
_INDEX = re.compile(r"^(prompt|continuation) 0\b")  # of a call that takes several


def words(text: str) -> str:
    """Return an error's words without what differs by design."""
    text = _INDEX.sub(r"\1", _SUBJECT.sub("", " ".join(text.split())))
    return text.replace(" | ", " ", 1)


def expect_equal(python: str, native: str, keys: Sequence[str]) -> None:
    """Compare errors as a whole, or where ``keys`` are given by these words."""
    if not keys:
        assert words(native) == words(python)
    for key in keys:
        assert key in python
        assert key in native


@dataclass(frozen=True)
class Wrong:
    """A bad request. ``keys`` are the words that both errors contain, where sentences differ."""

    name: str
    prompt: str | Sequence[int] = (5, 6, 7)
    continuation: Sequence[int] | None = None  # of a text to score
    schedule: str = "full"
    params: Mapping[str, Any] = field(default_factory=dict)
    draft: str | None = None
    keys: tuple[str, ...] = ()

    def line(self) -> dict[str, Any]:
        """Return the request for programs/generate.cpp."""
        params = self.params if self.draft is None else {**self.params, "draft": self.draft}
        made = {"prompt": self.prompt, "schedule": self.schedule, "params": params}
        return made if self.continuation is None else {**made, "continuation": self.continuation}


def wrong(name: str, *keys: str, **params: object) -> Wrong:
    return Wrong(name, params=params, keys=keys)


def wrong_schedule(name: str, text: str, *keys: str) -> Wrong:
    return Wrong(name, schedule=text, keys=keys)


# Python names the prompt of such a problem; libskipdec checks parameters before prompts.
OF_A_VOCABULARY = ("stop_token_ids has 300; allowed: 0 to 299, the model's vocabulary",)
REQUESTS = (
    wrong("temperature", temperature=-1.0),
    wrong("top_k", top_k=-2),
    wrong("top_p", top_p=0.0),
    wrong("min_p", min_p=1.5),
    wrong("repetition_penalty", repetition_penalty=0.0),
    wrong("presence_penalty", presence_penalty=3.0),
    wrong("frequency_penalty", frequency_penalty=-3.0),
    wrong("n", n=0),
    wrong("too many completions", n=1025),
    wrong("min_tokens", min_tokens=-1),
    wrong("min_tokens above max_tokens", min_tokens=17),
    wrong("several greedy completions", n=2, temperature=0.0),
    wrong("an empty stop string", stop=[""]),
    wrong("too many stop strings", stop=["x"] * 65),
    wrong("a long stop string", stop=["x" * 1025]),
    wrong("a negative stop token", stop_token_ids=[-1]),
    wrong("two fields", n=0, top_p=7.0),
    wrong("a stop token beyond the vocabulary", *OF_A_VOCABULARY, stop_token_ids=[300]),
    wrong("logprobs", "logprobs is 301; the vocabulary has 300 tokens", logprobs=301),
    # None in Python is 0 in C.
    wrong("max_tokens", "max_tokens is -4; allowed: an integer from 1, or ", max_tokens=-4),
    wrong("no room for max_tokens", max_tokens=62),
    wrong("more rows than run at once", n=5),
    wrong("more KV memory than allowed", n=4, max_tokens=60),
    Wrong("no tokens", prompt=()),
    Wrong("a negative token", prompt=(5, -1)),
    Wrong("a token beyond the vocabulary", prompt=(5, 300)),
    Wrong("a long prompt", prompt=(5,) * 65),
    Wrong("a long text", prompt="x" * 1000),
    Wrong("no continuation", continuation=()),
    Wrong("a continuation beyond the vocabulary", continuation=(300,)),
    Wrong("a long continuation", continuation=(5,) * 65),
    Wrong("a score without prompt", prompt=(), continuation=(5,)),
    Wrong("a long score", prompt=(5,) * 40, continuation=(5,) * 40),
    wrong_schedule("a horizon of 0", "2x:horizon=0"),
    wrong_schedule("a horizon beyond the positions", "2x:horizon=65"),
    # libskipdec reads presets and plans only, and says how to make one of another schedule.
    wrong_schedule("an unknown schedule", "lineer", "schedule 'lineer' | ", "is unknown", "full"),
    wrong_schedule("an unknown option", "2x:horizn=4", "schedule '2x:horizn=4' | ", "is unknown"),
    wrong_schedule("an option of full", "full:horizon=3", "schedule 'full:horizon=3' | "),
    wrong_schedule("half of a document", "{", "schedule | is not JSON"),
    Wrong("other drafts", draft="own"),
)


@pytest.fixture(scope="module")
def answers(text_bundle: Path) -> Mapping[str, str]:
    """Return libskipdec's error for each of REQUESTS."""
    lines = [each.line() for each in REQUESTS]
    answers = run_native(text_bundle, lines, **OPTIONS)
    return {each.name: answer["error"] for each, answer in zip(REQUESTS, answers, strict=True)}


@pytest.fixture(scope="module")
def generator(text_bundle: Path) -> Iterator[Generator]:
    with Generator.open(text_bundle, threads=1, **OPTIONS) as generator:
        yield generator


def submit(generator: Generator, case: Wrong) -> None:
    if case.continuation is not None:
        generator.score([case.prompt], [case.continuation], schedule=case.schedule)
        return
    with generator.running_batch() as batch:
        params = SamplingParams(**case.params)
        batch.add(case.prompt, params, schedule=case.schedule, draft=case.draft)


@pytest.mark.parametrize("case", REQUESTS, ids=lambda case: case.name)
def test_both_refuse_a_request_with_the_same_words(
    generator: Generator, answers: Mapping[str, str], case: Wrong
) -> None:
    with pytest.raises(SkipDecError) as refused:
        submit(generator, case)
    expect_equal(str(refused.value), answers[case.name], case.keys)


# 0 means all processors in C, None in Python; Python checks an upper bound by its own words.
@pytest.mark.parametrize(
    ("options", "keys"),
    [
        ({"max_batch_size": 0}, ()),
        ({"max_batch_size": 65537}, ()),
        ({"max_waiting": 0}, ()),
        ({"max_prefill_tokens": 15}, ()),
        ({"threads": 100_000}, ("threads", "is 100000; allowed: 1 to ", ", the processors that")),
        ({"threads": -1}, ("threads", "is -1; allowed: 1 ")),
        ({"schedule": "lineer"}, ("schedule 'lineer' | ", "is unknown")),
        ({"draft": "own+owl,tokens=9"}, ("'owl' is unknown; ", "tokens is '9'; allowed: 1 to 7")),
        ({"draft": "own+off"}, ()),
        ({"draft": "own+own"}, ()),
        ({"draft": "ends:3+own"}, ()),
        ({"draft": "ends"}, ()),
        ({"draft": "own:3"}, ()),
        ({"draft": "own,exact=maybe"}, ()),
        ({"draft": "own,tokens=4,tokens=5"}, ()),
        ({"draft": "o" * 1200}, ()),
        ({"draft": "own"}, ()),  # the bundle's weights are float32
        ({"draft": "first:6,exact=no"}, ()),
    ],
    ids=str,
)
def test_both_refuse_options_with_the_same_words(
    text_bundle: Path, options: dict[str, Any], keys: Sequence[str]
) -> None:
    with pytest.raises(SkipDecError) as refused:
        Generator.open(text_bundle, **({"threads": 1} | options))
    expect_equal(str(refused.value), native_error(text_bundle, **options), keys)


@pytest.mark.parametrize(
    "options",
    [
        {"admission": "gangs"},
        {"admission": "gang:least=3"},
        {"admission": "gang:min_free=x"},
        {"admission": "fcfs:min_free=2"},
        {"max_model_len": 65},
    ],
    ids=str,
)
def test_both_refuse_options_of_a_batch_with_the_same_words(
    text_bundle: Path, options: dict[str, Any]
) -> None:
    with (
        Generator.open(text_bundle, threads=1) as generator,
        pytest.raises(SkipDecError) as refused,
        generator.running_batch(**options),
    ):
        pass
    python = re.sub("did you mean '.*'[?] ", "", str(refused.value))  # libskipdec suggests nothing
    assert words(native_error(text_bundle, **options)) == words(python)


def same_verdict(reader: NativeReader, bundle: Path, keys: Sequence[str] = ()) -> None:
    python, native = python_verdict(bundle), reader.verdict(bundle)
    assert python.startswith("refused ")
    expect_equal(python, native, keys)


# Python checks fields by pydantic, whose words differ; both name the field.
@pytest.mark.parametrize(
    ("change", "keys"),
    [
        (lambda file: file.update(format_version=2), ()),
        (lambda file: file.update(format_version=99), ()),
        (lambda file: file.update(requires=["drafts"]), ()),
        (lambda file: file.update(requires=["drafts", "trees"]), ()),
        (lambda file: file.update(requires="drafts"), ("requires", "array")),
        (lambda file: file.pop("format_version"), ("has format version", "; this skipdec reads 3")),
        (lambda file: file.pop("model"), ("manifest.json | model: ",)),
        (lambda file: file.pop("engines"), ("manifest.json | engines: ",)),
        (lambda file: file.pop("precision"), ("manifest.json | precision: ",)),
        (lambda file: file.pop("target"), ("manifest.json | target: ",)),
        (lambda file: file["model"].pop("num_layers"), ("model.num_layers: ",)),
        (lambda file: file["model"].update(num_layers=0), ("model.num_layers: ", "1")),
        (lambda file: file["model"].update(vocab_size=2**25), ("model.vocab_size", "16777216")),
        (lambda file: file["engines"].pop(), ("engines", "; expected: ")),
        (lambda file: file["engines"][1].update(kind="tail"), ("engines.1.kind: ",)),
        (lambda file: file["files"][0].update(path="../x"), ("files.0.path: ", "../x", "'..'")),
        (lambda file: file["files"].append(file["files"][0]), ("files", " twice")),
        (lambda file: file["files"][0].update(size=1), ()),
        (lambda file: file["files"][0].update(sha256="0" * 64), ()),
        (lambda file: file["precision"].update(dtype="float8"), ("precision.dtype: ", "float16")),
        (lambda file: file.update(kernels="other"), ("kernels: ", "skipdec")),
        (lambda file: file.update(prompt_template="x"), ("prompt_template: ", "{prompt} once")),
        (lambda file: file.update(tokenizer="other.json"), ("other.json",)),
    ],
)
def test_both_refuse_a_manifest_with_the_same_words(
    reader: NativeReader, bundle: Path, change: Edit, keys: Sequence[str]
) -> None:
    edit(bundle, "manifest.json", change)
    same_verdict(reader, bundle, keys)


@pytest.mark.parametrize(
    ("change", "keys"),
    [
        (lambda file: file["draft_layer"].update(behind=0), ("draft_layer.behind: ", "1")),
        (
            lambda file: file["draft_layer"].update(behind=6),
            ("draft_layer is behind 6 layers; allowed: 1 to 5, as the model has 6",),
        ),
        (lambda file: file["draft_layer"].pop("engine"), ("draft_layer.engine: ",)),
        (
            lambda file: file["draft_layer"]["engine"].update(name="layer_001"),
            (
                "draft_layer.engine: ",
                "is engine layer_001, a layer; expected: layer_draft, a layer",
            ),
        ),
        (
            lambda file: file["draft_layer"]["engine"].update(graph="other.onnx"),
            ("engine layer_draft", "names other.onnx, not listed in files"),
        ),
        (
            lambda file: file["draft_head"].update(tokens=300),
            ("draft_head has 300 tokens; allowed: fewer than 300, the model's vocabulary",),
        ),
        (lambda file: file["draft_head"].update(tokens=128), ("engine head_draft: logits is ",)),
        (
            lambda file: file["draft_head"]["engine"].update(weights=["tokenizer.json"]),
            ("draft_head reads tokenizer.json; allowed: only the head's weights, ",),
        ),
    ],
)
def test_both_refuse_parts_of_drafts_with_the_same_words(
    reader: NativeReader, bundle: Path, change: Edit, keys: Sequence[str]
) -> None:
    edit(bundle, "manifest.json", add_drafts)
    assert python_verdict(bundle) == reader.verdict(bundle) == OPEN
    edit(bundle, "manifest.json", change)
    same_verdict(reader, bundle, keys)


@pytest.mark.parametrize(
    ("change", "keys"),
    [
        (lambda file: file["schedule"].update(horizon=0), ("horizon", " is 0; allowed: 1 to ")),
        (
            lambda file: file["schedule"].update(decay="other"),
            ("decay", "; ", "allowed: linear, cosine"),
        ),
        (lambda file: file["plan"].pop("horizon"), ("plan", "is not what its schedule")),
        (lambda file: file.pop("schedule"), ("schedule", "write it with 'skipdec schedule set'")),
    ],
)
def test_both_refuse_a_schedule_file_with_the_same_words(
    reader: NativeReader, bundle: Path, change: Edit, keys: Sequence[str]
) -> None:
    edit(bundle, "schedule.json", change)
    same_verdict(reader, bundle, keys)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_both_refuse_a_missing_document_with_the_same_words(
    reader: NativeReader, bundle: Path, name: str
) -> None:
    (bundle / name).unlink()
    same_verdict(reader, bundle)


@pytest.mark.parametrize("name", ["manifest.json", "schedule.json"])
def test_both_refuse_a_cut_document_with_the_same_words(
    reader: NativeReader, bundle: Path, name: str
) -> None:
    (bundle / name).write_text("{")
    same_verdict(reader, bundle, (f"{name} | is not JSON", "; "))


def test_both_refuse_a_missing_bundle_with_the_same_words(
    reader: NativeReader, tmp_path: Path
) -> None:
    same_verdict(reader, tmp_path / "bundle")
    same_verdict(reader, tmp_path)
