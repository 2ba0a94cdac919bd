"""A checkpoint's chat template, from any of three files, becomes a file of the bundle."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fixture_types import Checkpoints
from text_bundles import CHAT_TEMPLATE, STRUCTURE, copy_with_tokenizer, export_chat_bundle

from skipdec import Generator, SamplingParams
from skipdec.engines.bundle import EngineBundle
from skipdec.engines.errors import CheckpointError
from skipdec.exporter.checkpoint.checkpoint import open_checkpoint
from skipdec.exporter.config import CheckpointSource, ExportConfig
from skipdec.exporter.pipeline.exporting import plan_export
from skipdec.runtime.tokens.chat import MAX_TEMPLATE_BYTES

MESSAGES = [{"role": "user", "content": "Hi </s> you"}]


@pytest.fixture
def source(checkpoint: Checkpoints, tmp_path: Path) -> Path:
    return copy_with_tokenizer(checkpoint(STRUCTURE), tmp_path / "model")


def write(directory: Path, **files: object) -> None:
    for name, content in files.items():
        text = content if isinstance(content, str) else json.dumps(content)
        (directory / name.replace("__", ".")).write_text(text)


def test_the_template_file_precedes_tokenizer_config_and_json(source: Path) -> None:
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
    ("config", "tokens"),
    [
        ({}, {"bos_token": "</s>", "eos_token": "</s>", "unk_token": "<unk>"}),
        (
            {"bos_token": "<s>", "eos_token": {"content": "<|end|>"}},
            {"bos_token": "<s>", "eos_token": "<|end|>", "unk_token": "<unk>"},
        ),
        ({"bos_token": None}, {"eos_token": "</s>", "unk_token": "<unk>"}),
        (
            {"pad_token": "<pad>", "unk_token": None, "extra_special_tokens": [{"content": "a"}]},
            {
                "bos_token": "</s>",
                "eos_token": "</s>",
                "pad_token": "<pad>",
                "additional_special_tokens": ["a"],
            },
        ),
    ],
)
def test_special_tokens_come_from_the_configuration_files_or_the_ids(
    source: Path, config: dict[str, object], tokens: dict[str, object]
) -> None:
    others = {"unk_token": "<unk>", "sep_token": None}
    write(source, chat_template__jinja="x", tokenizer_config__json=config)
    write(source, special_tokens_map__json=others)
    chat = open_checkpoint(CheckpointSource(model=str(source))).chat
    assert chat is not None
    assert chat.described.special_tokens == tokens


@pytest.mark.parametrize("name", ["tokenizer_config__json", "special_tokens_map__json"])
def test_a_text_also_ends_at_the_tokenizers_end_token(source: Path, name: str) -> None:
    opened = CheckpointSource(model=str(source))
    assert open_checkpoint(opened).model.end_token_ids == (2,)
    for eos, expected in (("</s>", (2,)), ({"content": "<unk>"}, (2, 3)), ("absent", (2,))):
        write(source, **{name: {"eos_token": eos}})
        assert open_checkpoint(opened).model.end_token_ids == expected


@pytest.mark.parametrize(
    ("template", "problem"),
    [
        ("{% for %}", r"is not a template \(line 1.*\); correct it and export again$"),
        (
            "{{ raise_exception('no users') }}",
            "renders no chat: messages are refused by .* no users",
        ),
        ("{{ '%(a)3900000000d' % {'a': 1} }}", "needs more than 512 MiB of memory"),
        ("{{ 5 | round(-1000000000) }}", "takes (more|longer) than"),
        ("{{ messages[0].content.text }}{{ messages.x.y }}", "can't render these messages"),
    ],
)
def test_a_template_that_renders_no_chat_is_refused_by_file_name(
    source: Path, template: str, problem: str
) -> None:
    write(source, chat_template__jinja=template)
    with pytest.raises(CheckpointError, match=rf"chat_template.jinja \| .*{problem}"):
        open_checkpoint(CheckpointSource(model=str(source)))


@pytest.mark.parametrize("name", ["chat_template.jinja", "tokenizer_config.json"])
def test_the_size_of_a_template_is_limited_in_every_file(source: Path, name: str) -> None:
    text = "x" * (MAX_TEMPLATE_BYTES + 1)
    (source / name).write_text(text if "jinja" in name else json.dumps({"chat_template": text}))
    with pytest.raises(CheckpointError, match=r"1,048,576 bytes, the limit"):
        open_checkpoint(CheckpointSource(model=str(source)))


@pytest.mark.parametrize("template", [5, {"a": "b"}, [{"name": "default", "template": 5}]])
def test_a_template_that_is_no_text_is_refused(source: Path, template: object) -> None:
    write(source, tokenizer_config__json={"chat_template": template})
    with pytest.raises(CheckpointError, match=r"config.json \| has the chat template .*; allowed"):
        open_checkpoint(CheckpointSource(model=str(source)))


@pytest.mark.parametrize("name", ["chat_template__jinja", "tokenizer_config__json"])
def test_an_empty_template_is_none(source: Path, name: str) -> None:
    write(source, **{name: "" if "jinja" in name else {"chat_template": ""}})
    assert open_checkpoint(CheckpointSource(model=str(source))).chat is None


def transformers_warnings(source: Path, **config: object) -> list[str]:
    names = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "</s>"}
    write(source, tokenizer_config__json=names | config)
    options: dict[str, Any] = {"model": str(source), "verify": False}
    warnings = plan_export(ExportConfig(output=source / "bundle", **options)).warnings
    return [warning for warning in warnings if "chat" in warning]


def test_an_export_compares_chat_tokens_with_transformers(source: Path) -> None:
    write(source, chat_template__jinja=CHAT_TEMPLATE)
    assert transformers_warnings(source) == []
    write(source, chat_template__jinja="{{ eos_token }}{{ messages[0].content }}")
    (differing,) = transformers_warnings(source)
    assert "apply_chat_template: eos_token is '</s>', there None" in differing


def test_an_exported_template_is_listed_copied_and_used(
    checkpoint: Checkpoints, tmp_path: Path
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
    assert (chatted.prompt_token_ids[0], chatted.prompt_token_ids.count(2)) == (0, 1)
