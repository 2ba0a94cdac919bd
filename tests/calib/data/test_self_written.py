"""Texts that a model writes itself are reproducible, resumable and filtered."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from chat_templates import TEMPLATES, byte_tokenizer
from safetensors.torch import load_file, save_file
from writing_models import POSITIONS

from skipdec.calib.data import self_written
from skipdec.calib.data.data import DataConfig, load_examples
from skipdec.calib.data.own_texts import OwnTexts
from skipdec.calib.data.self_written import is_looping, write_own_texts
from skipdec.engines.errors import ConfigurationError, UsageError
from skipdec.engines.host.events import Events
from skipdec.exporter.checkpoint.checkpoint import Checkpoint, open_checkpoint
from skipdec.exporter.config import CheckpointSource
from skipdec.runtime.generator import Generator
from skipdec.runtime.tokens.chat import ChatTemplate
from skipdec.runtime.tokens.tokenizer import Tokenizer

Write = Callable[..., list[dict[str, Any]]]
Opened = Callable[[OwnTexts, Path, str], AbstractContextManager[Generator]]

COUNT = 20  # more than the usable texts of one wave


class Interrupted(Events):
    """Interrupts the writing after some texts."""

    def __init__(self, texts: int) -> None:
        self._texts, self._stage = texts, ""

    def stage(self, name: str, total: int | None = None) -> None:
        self._stage = name

    def advance(self, item: str = "", steps: int = 1, *, detail: str = "") -> None:
        self._texts -= steps if self._stage == "writing texts" else 0
        if self._texts < 0:
            raise KeyboardInterrupt


@pytest.fixture(scope="module")
def models(writing_model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return a model with a chat template, the same without, and one with other weights."""
    directory = tmp_path_factory.mktemp("models")
    plain, other = (shutil.copytree(writing_model, directory / name) for name in ("plain", "other"))
    (plain / "chat_template.jinja").unlink()
    weights = load_file(other / "model.safetensors")
    weights["model.norm.weight"] *= 1.01
    save_file(weights, other / "model.safetensors", {"format": "pt"})
    return {"chat": writing_model, "plain": plain, "other": other}


def opened_model(directory: Path) -> Checkpoint:
    return open_checkpoint(CheckpointSource(model=str(directory)))


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    """Open the engines that write texts once for all tests."""
    work, original = tmp_path_factory.mktemp("work"), self_written._generator
    generators: dict[tuple[str, int], Generator] = {}
    with ExitStack() as stack:

        def open_once(texts: OwnTexts, _: Path, device: str) -> AbstractContextManager[Generator]:
            key = (str(texts.checkpoint.directory), texts.max_length)
            if key not in generators:
                directory = work / str(len(generators))
                generators[key] = stack.enter_context(original(texts, directory, device))
            return nullcontext(generators[key])

        yield open_once


@pytest.fixture
def write(
    models: dict[str, Path], opened: Opened, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Write:
    """Return ``write(model, name, events, **changes)``: COUNT texts in waves of 16."""
    monkeypatch.setattr(self_written, "_generator", opened)
    monkeypatch.setattr(self_written, "_WAVES", {"cpu": 16})

    def run(
        model: str, name: str = "own", events: Events | None = None, **changes: int
    ) -> list[dict[str, Any]]:
        options = {"count": COUNT, "max_length": POSITIONS, "seed": 0} | changes
        texts = OwnTexts(tmp_path / f"{name}.self.jsonl", opened_model(models[model]), **options)
        write_own_texts(texts, tmp_path / ".work", on_gpu=False, events=events or Events())
        return texts.read()[0]

    return run


def test_chats_follow_the_template_and_neither_repeat_nor_loop(
    write: Write, tmp_path: Path
) -> None:
    chats = write("chat")
    assert len(chats) == COUNT
    questions = [chat["messages"][0]["content"] for chat in chats]
    answers = [chat["messages"][1]["content"] for chat in chats]
    assert all(len(text) == 3 and text.endswith("?") for text in questions)
    assert len({*questions}) == COUNT
    assert not any("la la" in answer for answer in answers), "two fifths of the written texts"
    assert chats[-1]["index"] >= COUNT * 4 / 3
    assert not list(tmp_path.glob(".*"))
    examples = load_examples(DataConfig(path=tmp_path / "own.self.jsonl"))
    assert [str(one.prompt) for one in examples] == [f"user: {text}" for text in questions]


def test_the_prompt_of_a_base_models_text_is_its_first_word(write: Write, tmp_path: Path) -> None:
    texts = write("plain")
    wholes = [text["prompt"] + text["completion"] for text in texts]
    assert len({*wholes}) == COUNT
    assert all(len(text["prompt"]) == 1 and text["prompt"].isalpha() for text in texts)
    assert [text["prompt"] for text in texts] == [whole.split()[0] for whole in wholes]
    assert all(whole.endswith(".") for whole in wholes)
    assert len(load_examples(DataConfig(path=tmp_path / "own.self.jsonl"))) == COUNT


def test_an_interrupted_run_continues_with_the_same_texts(write: Write, tmp_path: Path) -> None:
    whole = write("chat", "whole")
    path = tmp_path / "own.self.jsonl"
    for kept in (3, 14):  # in the first wave, and in a later one
        with pytest.raises(KeyboardInterrupt):
            write("chat", events=Interrupted(kept))
        assert len(path.read_bytes().splitlines()) == kept + 1
        with path.open("ab") as file:
            file.write(b'{"index": 77, "mess')
    assert write("chat") == whole
    assert path.read_bytes() == (tmp_path / "whole.self.jsonl").read_bytes()
    assert write("chat", count=COUNT + 5)[:COUNT] == whole
    assert write("chat", "seeded", seed=1) != whole


def test_a_resumed_wave_runs_the_same_batches_as_an_undisturbed_one(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    complete, batches = self_written._Writer._complete, list[list[int]]()

    def recorded(writer: Any, prompts: Any, seeds: Any, sampling: Any) -> Any:  # noqa: ANN401
        batches.append([*seeds])
        return complete(writer, prompts, seeds, sampling)

    monkeypatch.setattr(self_written._Writer, "_complete", recorded)
    write("chat", "whole")
    whole = batches.copy()
    with pytest.raises(KeyboardInterrupt):
        write("chat", events=Interrupted(3))
    batches.clear()
    write("chat")
    assert batches == whole


def test_texts_of_another_model_or_options_are_refused(write: Write, tmp_path: Path) -> None:
    write("chat", count=2)
    before = (tmp_path / "own.self.jsonl").read_bytes()
    for change, name in (
        ({"model": "other"}, "model_sha256"),
        ({"model": "plain"}, "model_sha256"),
        ({"seed": 1}, "seed 0; this run writes those of 1"),
        ({"max_length": 32}, "max_length 64; this run writes those of 32"),
    ):
        with pytest.raises(UsageError, match=f"holds texts of {name}") as caught:
            write(**{"model": "chat"} | change)
        assert "move both files away, or choose another output" in str(caught.value)
    (tmp_path / "own.self.jsonl").write_bytes(b"not JSON\n" + before)
    with pytest.raises(UsageError, match="is damaged at line 1"):
        write("chat", count=2)
    assert (tmp_path / "own.self.jsonl").read_bytes() == b"not JSON\n" + before


def test_a_device_writes_in_larger_batches(
    models: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rehearse(path: Path, device: str, max_batch_size: int) -> Generator:
        assert (device, max_batch_size) == ("cuda", 64)
        return Generator.open(path, device="rehearsal", max_batch_size=max_batch_size)

    monkeypatch.setattr(self_written, "Generator", SimpleNamespace(open=rehearse))
    model = opened_model(models["chat"])
    texts = OwnTexts(tmp_path / "own.self.jsonl", model, COUNT, POSITIONS, 0)
    write_own_texts(texts, tmp_path / ".work", on_gpu=True, events=Events())
    assert len(texts.read()[0]) == COUNT
    assert not list(tmp_path.glob(".*"))


def test_too_few_usable_texts_are_an_error(write: Write) -> None:
    with pytest.raises(UsageError, match=r"texts were written, and 6[0-4] of them can be used"):
        write("chat", count=70)  # the model knows 64 questions


def test_truncated_texts_are_kept_only_as_texts_without_an_end(
    write: Write,
) -> None:
    texts = write("plain", max_length=7, count=12)  # "<s>A B C.</s>" has 8 tokens
    assert any(len(text["prompt"] + text["completion"]) == 6 for text in texts)
    for text in texts:
        line = json.dumps(text)
        assert text["completion"].endswith(".") or len(text["completion"]) >= 5, line


@pytest.mark.parametrize(
    ("style", "before", "stop"),
    [
        ("chatml", "<|im_start|>system\nBe of use.<|im_end|>\n<|im_start|>user\n", "<|im_end|>"),
        ("llama3", "<s><|head|>user<|/head|>\n\n", "<|eot|>"),
        ("mistral", "<s>[INST]", "[/INST]"),
        ("phi3", "<|user|>\n", "<|end|>"),
        ("plain", "User:", "Assistant:"),
    ],
)
def test_a_turn_begins_and_ends_as_in_the_template(style: str, before: str, stop: str) -> None:
    tokenizer = Tokenizer.parse(byte_tokenizer().to_str().encode(), "tokenizer")
    names = {"bos_token": "<s>", "eos_token": "</s>"}
    tokenizer.chat = ChatTemplate(TEMPLATES[style], tokenizer, special_tokens=names)
    model = SimpleNamespace(end_token_ids=(2,), bos_token_id=0)
    generator: Any = SimpleNamespace(tokenizer=tokenizer, model=model)
    texts = OwnTexts(Path("own.self.jsonl"), SimpleNamespace(), 1, POSITIONS, 0)  # type: ignore[arg-type]
    writer = self_written._Writer(generator, texts, lambda deltas: None)
    tokenizer.close()
    assert writer._start == tokenizer.encode(before, add_special_tokens=False)
    token_id = tokenizer.ids_of_special_tokens.get(stop)
    assert writer._stop == ({"stop": stop} if token_id is None else {"stop_token_ids": [token_id]})


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        ([7] * 16, True),
        ([7] * 15, False),
        ([*range(50), *[1, 2, 3, 4, 5, 6] * 3], True),
        ([*range(50), *[1, 2, 3, 4, 5, 6] * 3, 9], False),
        ([*range(40), *range(100, 120), *range(40)], False),
        ([*range(14)] * 3, True),
        ([1, 2, 3, 4, 5, 6, 7, 8] * 5 + [9], True),  # most of the text
        ([], False),
    ],
)
def test_loops_are_recognised(ids: list[int], expected: bool) -> None:
    assert is_looping(ids) == expected


def test_self_written_data_takes_no_file_options() -> None:
    assert DataConfig(path="self").own_texts == 5000
    assert DataConfig(path="self:20000").own_texts == 20000
    assert DataConfig(path="self.jsonl").own_texts is None
    for path in ("self:0", "self:", "self:many", "self:-1", "self:²", "self:" + "9" * 5000):
        with pytest.raises(ConfigurationError, match="allowed: self, or self:N"):
            DataConfig(path=path)
    options = {"preset": "e2e", "prompt_template": "{prompt}!", "long_prompts": "cut"}
    with pytest.raises(ConfigurationError) as caught:
        DataConfig(path="self", **options)
    assert all(
        f"{name} is {value!r}; leave it out" in str(caught.value) for name, value in options.items()
    )
    with pytest.raises(UsageError, match="only skipdec tune and ngrams can do; give"):
        load_examples(DataConfig(path="self"))
