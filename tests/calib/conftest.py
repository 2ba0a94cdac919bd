"""Provide an evaluation whose output many tests read, and a checkpoint and rows for commands."""

from __future__ import annotations

from pathlib import Path

import pytest
from evaluations import SKIPPING, write_rows
from fixture_types import Checkpoints
from text_bundles import STRUCTURE, copy_with_tokenizer, export_chat_bundle
from tiny_models import LLAMA_BASE, LLAMA_STRUCTURES, random_model
from writing_models import save_writing_model

from skipdec.calib.data.data import DataConfig
from skipdec.calib.evaluation.config import BundleChoice, EvaluationConfig
from skipdec.calib.evaluation.evaluation import Evaluation, evaluate
from skipdec.runtime.generator import Generator


@pytest.fixture(scope="session")
def bundle(text_bundle: Path) -> Path:
    """Return a bundle of 6 layers with a byte tokenizer and the schedule SKIPPING."""
    return text_bundle


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a LLaMA bundle of 6 layers with a byte tokenizer and a chat template.

    Its checkpoint is in the same directory.
    """
    directory = tmp_path_factory.mktemp("llama")
    config = {**LLAMA_BASE, **LLAMA_STRUCTURES["llama"], "vocab_size": 300}
    random_model(config).save_pretrained(directory / "random")
    return export_chat_bundle(directory / "random", directory, schedule="2x:horizon=4")


@pytest.fixture(scope="session")
def writing_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a checkpoint that has learnt to write chats and texts."""
    return save_writing_model(tmp_path_factory.mktemp("writing") / "model")


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a file of three prompts, the first with two references."""
    return write_rows(tmp_path_factory.mktemp("data") / "rows.jsonl")


@pytest.fixture(scope="session")
def config(bundle: Path, data: Path) -> EvaluationConfig:
    """Evaluate full depth and SKIPPING with two prompts per batch and six tokens."""
    return EvaluationConfig(
        bundles=(BundleChoice("tiny", bundle),),
        data=DataConfig(path=data),
        schedules=(SKIPPING,),
        batch_size=2,
        max_tokens=6,
        seconds=0,
        resamples=20,
        num_shown=2,
    )


@pytest.fixture(scope="session")
def evaluation(config: EvaluationConfig) -> Evaluation:
    """Return the evaluation of ``config``."""
    return evaluate(config, Generator.open)


@pytest.fixture
def model(checkpoint: Checkpoints, tmp_path: Path) -> Path:
    """Return a tiny checkpoint with a byte tokenizer."""
    return copy_with_tokenizer(checkpoint(STRUCTURE), tmp_path / "model")


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    """Return a file of eight rows with the columns of E2E."""
    path = tmp_path / "rows.csv"
    path.write_text("mr,ref\n" + "name[Ant],Ant is a pub.\nname[Bee],Bee is not one.\n" * 4)
    return path
