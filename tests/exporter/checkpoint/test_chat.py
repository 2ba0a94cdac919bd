"""A checkpoint's chat template becomes a file of the bundle, from any of the three places."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from text_bundles import CHAT_TEMPLATE, STRUCTURE, copy_with_tokenizer, export_chat_bundle

from skipdec import Generator, SamplingParams
from skipdec.engines.bundle import EngineBundle
from skipdec.engines.errors import CheckpointError
from skipdec.exporter.checkpoint.checkpoint import open_checkpoint
from skipdec.exporter.config import CheckpointSource

MESSAGES = [{"role": "user", "content": "Hi </s> you"}]


@pytest.fixture
def source(checkpoint: Callable[[str], Path], tmp_path: Path) -> Path:
    return copy_with_tokenizer(checkpoint(STRUCTURE), tmp_path / "model")


def write(directory: Path, **files: object) -> None:
    for name, content in files.items():
        text = content if isinstance(content, str) else json.dumps(content)
        (directory / name.replace("__", ".")).write_text(text)


def test_the_file_comes_before_tokenizer_config_before_chat_template_json(source: Path) -> None:
    opened = CheckpointSource(model=str(source))
    assert open_checkpoint(opened).chat is None
    named = [{"name": "tool_use", "template": "x"}, {"name": "default", "template": "named"}]
    for name, content, expected in (
        ("chat_template__json", {"chat_template": "from json"}, b"from json"),
        ("tokenizer_config__json", {"chat_template": named}, b"named"),
        ("tokenizer_config__json", {"chat_template": "from config"}, b"from config"),
        ("chat_template__jinja", "from file", b"from file"),
    ):
        write(source, **{name: content})
        chat = open_checkpoint(opened).chat
        assert chat is not None
        assert chat.content == expected


@pytest.mark.parametrize(
    ("config", "bos", "eos"),
    [
        ({}, "</s>", "</s>"),
        ({"bos_token": "<s>", "eos_token": {"content": "<|end|>"}}, "<s>", "<|end|>"),
        ({"bos_token": None}, None, "</s>"),
    ],
)
def test_special_texts_come_from_the_configuration_or_the_ids(
    source: Path, config: dict[str, object], bos: str | None, eos: str
) -> None:
    write(source, chat_template__jinja="x", tokenizer_config__json=config)
    chat = open_checkpoint(CheckpointSource(model=str(source))).chat
    assert chat is not None
    assert (chat.described.bos_token, chat.described.eos_token) == (bos, eos)


@pytest.mark.parametrize("name", ["tokenizer_config__json", "special_tokens_map__json"])
def test_a_text_also_ends_at_the_end_of_text_of_the_tokenizer(source: Path, name: str) -> None:
    opened = CheckpointSource(model=str(source))
    assert open_checkpoint(opened).model.end_token_ids == (2,)
    for eos, expected in (("</s>", (2,)), ({"content": "<unk>"}, (2, 3)), ("absent", (2,))):
        write(source, **{name: {"eos_token": eos}})
        assert open_checkpoint(opened).model.end_token_ids == expected


def test_a_template_that_is_none_names_its_file_before_work_starts(source: Path) -> None:
    write(source, chat_template__jinja="{% for %}")
    with pytest.raises(CheckpointError, match=r"chat_template.jinja \| is not a template \(line 1"):
        open_checkpoint(CheckpointSource(model=str(source)))


def test_an_exported_template_is_listed_copied_and_used(
    checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    exported = export_chat_bundle(checkpoint(STRUCTURE), tmp_path)
    bundle = EngineBundle.open(exported).save(tmp_path / "copy")
    described = bundle.manifest.chat_template
    assert described is not None
    assert bundle.read(described.path) == CHAT_TEMPLATE.encode()
    params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
    with Generator.open(bundle.path, threads=1) as generator:
        (chatted,) = generator.generate([{"messages": MESSAGES}], params)
        assert chatted.prompt == "<s>user: Hi </s> you</s>assistant:"
        (given,) = generator.generate([chatted.prompt_token_ids], params)
    assert chatted.outputs[0].token_ids == given.outputs[0].token_ids
    assert (*chatted.prompt_token_ids[:2], chatted.prompt_token_ids.count(2)) == (2, 0, 2)
