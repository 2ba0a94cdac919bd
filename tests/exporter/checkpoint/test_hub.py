"""A checkpoint from the hub has the same files as its directory."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import transformers
from fixture_types import Checkpoints
from huggingface_hub.utils import filter_repo_objects
from transformers import tokenization_utils_base, utils
from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING_NAMES

from skipdec.engines.errors import CheckpointError
from skipdec.exporter.architecture.architecture import ARCHITECTURES
from skipdec.exporter.checkpoint.checkpoint import open_checkpoint
from skipdec.exporter.checkpoint.hub import locate
from skipdec.exporter.checkpoint.tokenizer import TEXT_FILES
from skipdec.exporter.config import CheckpointSource

HUB = CheckpointSource(model="me/tiny")


@pytest.fixture
def repository(checkpoint: Checkpoints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the directory of me/tiny on the hub, which a test may change."""
    uploaded = Path(shutil.copytree(checkpoint("pre_norm"), tmp_path / "uploaded"))

    def download(_model: str, *, allow_patterns: list[str], **_: Any) -> str:  # noqa: ANN401
        snapshot = tmp_path / "snapshot"
        snapshot.mkdir(exist_ok=True)
        names = [path.name for path in uploaded.iterdir()]
        for name in filter_repo_objects(names, allow_patterns=allow_patterns):
            shutil.copy(uploaded / name, snapshot / name)
        return str(snapshot)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    return uploaded


def names_in_transformers() -> set[str]:
    """Return the files that transformers looks for, from its constants."""
    names = {
        utils.CONFIG_NAME,
        utils.GENERATION_CONFIG_NAME,
        utils.CHAT_TEMPLATE_FILE,
        utils.LEGACY_PROCESSOR_CHAT_TEMPLATE_FILE,
        tokenization_utils_base.ADDED_TOKENS_FILE,
        tokenization_utils_base.SPECIAL_TOKENS_MAP_FILE,
        tokenization_utils_base.TOKENIZER_CONFIG_FILE,
    }
    classes = {TOKENIZER_MAPPING_NAMES.get(family) for family in ARCHITECTURES} - {None}
    for name in {*classes, "TokenizersBackend", "LlamaTokenizer", "GPT2Tokenizer"}:
        names |= set(getattr(transformers, str(name)).vocab_files_names.values())
    return names


def test_every_file_read_by_transformers_is_downloaded(repository: Path) -> None:
    names = names_in_transformers()
    for name in names - {"config.json"}:
        (repository / name).write_text("{}")
    downloaded = {path.name for path in locate(HUB).path.iterdir()}
    assert names <= downloaded


def test_derived_checkpoints_keep_every_text_related_file() -> None:
    written = {utils.CONFIG_NAME, "tokenizer.json"}  # written anew
    assert names_in_transformers() - written <= {*TEXT_FILES}


def test_tokens_added_by_fine_tuning_survive_the_download(repository: Path) -> None:
    vocab = ["<s>", "<pad>", "</s>", "<unk>", *map(chr, range(33, 127)), "Ġ", "ab"]
    files: dict[str, object] = {
        "vocab.json": {token: index for index, token in enumerate(vocab)},
        "added_tokens.json": {"<turn>": len(vocab)},
        "tokenizer_config.json": {"tokenizer_class": "GPT2Tokenizer", "unk_token": "<unk>"},
    }
    for name, document in files.items():
        (repository / name).write_text(json.dumps(document))
    (repository / "merges.txt").write_text("#version: 0.2\na b\n")
    content = open_checkpoint(HUB).tokenizer_json
    assert content is not None
    assert b'"<turn>"' in content
    assert content == open_checkpoint(CheckpointSource(model=str(repository))).tokenizer_json


@pytest.mark.parametrize(
    ("name", "problem"), [("a", "is not a directory"), ("b", "does not exist")]
)
def test_a_path_to_a_file_and_a_missing_path_have_different_errors(
    tmp_path: Path, name: str, problem: str
) -> None:
    (tmp_path / "a").touch()
    with pytest.raises(CheckpointError, match=rf"{problem}; pass a directory with config\.json"):
        locate(CheckpointSource(model=str(tmp_path / name)))


def test_an_uncached_model_is_refused_without_advising_a_command() -> None:
    with pytest.raises(CheckpointError) as caught:
        locate(CheckpointSource(model="nope", local_files_only=True))
    assert str(caught.value).endswith("pass a local directory with config.json and weights")
