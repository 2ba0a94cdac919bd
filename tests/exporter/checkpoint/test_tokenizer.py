"""A checkpoint's tokenizer is read, converted, and compared with that of transformers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from libskipdec.token_files import tokenizer_file

from skipdec.engines.errors import CheckpointError
from skipdec.engines.host.worker import Limits
from skipdec.exporter.checkpoint import tokenizer
from skipdec.exporter.checkpoint.chat import transformers_warnings
from skipdec.exporter.checkpoint.tokenizer import read_tokenizer, vocabulary_warning
from skipdec.runtime.tokens.tokenizer import Tokenizer


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Return a checkpoint without weights, with a tokenizer like LLaMA 2's."""
    tokenizer_file("llama2", tmp_path, 400).rename(tmp_path / "tokenizer.json")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    return tmp_path


def warning(directory: Path, **options: object) -> str | None:
    (directory / "tokenizer_config.json").write_text(json.dumps(options))
    content = (directory / "tokenizer.json").read_bytes()
    warnings = transformers_warnings(directory, Tokenizer.parse(content, "test"), None)
    return warnings[0] if warnings else None


def test_equal_tokenizers_need_no_warning(directory: Path) -> None:
    assert warning(directory, tokenizer_class="PreTrainedTokenizerFast") is None


def test_a_tokenizer_config_that_changes_ids_is_a_warning(directory: Path) -> None:
    """LlamaTokenizer omits a blank that the older file puts before " two"."""
    text = warning(directory, tokenizer_class="LlamaTokenizer")
    assert text is not None
    assert "tokenizer.json encodes ' two  blanks' as [1, " in text
    assert "the bundle uses tokenizer.json" in text


DOUBLE = {"type": "Replace", "pattern": {"String": "e"}, "content": "ee"}
CATASTROPHE = {
    "type": "Split",
    "pattern": {"Regex": "(.|.)+$[A-Z]"},
    "behavior": "Isolated",
    "invert": False,
}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            {"normalizer": {"type": "Sequence", "normalizers": [DOUBLE] * 60}},
            "its normalizer may make a text 1.2e[+]18 times as long; allowed: 100 times",
        ),
        ({"pre_tokenizer": CATASTROPHE}, r"is not a tokenizer \(PanicException: .* retry-limit-in"),
        ({"normalizer": {"type": "Nonsense"}}, r"is not a tokenizer \(.*data did not match any"),
    ],
)
def test_a_tokenizer_that_kills_the_library_is_an_error_of_its_file(
    change: dict[str, object], reason: str, directory: Path
) -> None:
    path = directory / "tokenizer.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(CheckpointError, match=reason) as caught:
        read_tokenizer(directory)
    assert caught.value.subject == str(path)
    assert caught.value.problems[0].endswith("; use the tokenizer files of the original model")


def test_a_tokenizer_that_exceeds_a_limit_is_an_error_naming_the_limit(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokenizer, "_READING", Limits(seconds=20, memory=4 << 30, wall=0.01))
    with pytest.raises(CheckpointError, match=r"the process that tried it took more than 0\.01 s"):
        read_tokenizer(directory)


def test_a_configuration_that_transformers_refuses_is_a_warning(directory: Path) -> None:
    config = {"model_type": "llama", "num_hidden_layers": 2, "layer_types": ["nonsense"]}
    (directory / "config.json").write_text(json.dumps(config))
    text = warning(directory)
    assert text is not None
    assert "was not compared with transformers: " in text
    assert "can't be read by transformers (StrictDataclass" in text


@pytest.mark.parametrize(
    ("content", "package"),
    [(b"\x0a\x0e\x0a\x05<unk>", "sentencepiece"), (b"IQ== 0\nIg== 1\n", "tiktoken")],
)
def test_a_tokenizer_model_without_its_package_names_the_package(
    content: bytes, package: str, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (directory / "tokenizer.json").unlink()
    (directory / "tokenizer.model").write_bytes(content)
    monkeypatch.setattr(tokenizer, "is_installed", lambda name: name != package)
    with pytest.raises(CheckpointError, match=f"pip install {package}, or put a tokenizer.json"):
        read_tokenizer(directory)


def test_tokens_beyond_the_embedding_are_a_warning(directory: Path) -> None:
    content = read_tokenizer(directory)
    assert content is not None
    parsed = Tokenizer.parse(content, "test")
    count = parsed.vocab_size
    assert vocabulary_warning(parsed, count) is None
    text = vocabulary_warning(parsed, count - 2)
    assert text is not None
    assert text.startswith(f"the tokenizer has 2 tokens beyond the {count - 2} rows of the model's")
