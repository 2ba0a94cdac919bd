"""The starting point of a tuning: a checkpoint's weights and tokenizer, or a fresh model's."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...engines.errors import CheckpointError
from ...engines.manifest import ModelSpec
from ...exporter.architecture.model_config import model_spec
from ...exporter.checkpoint.hub import CheckpointDirectory, locate
from ...exporter.checkpoint.template import read_template
from ...exporter.checkpoint.tokenizer import read_tokenizer
from ...exporter.config import CheckpointSource
from ...runtime.tokens.tokenizer import Tokenizer
from ..data.data import Example
from .config import DEFAULT_SEPARATOR, DEFAULT_VOCAB_SIZE, TuneConfig
from .family import TuningFamily, fresh_document, load_skip_model, tuning_family
from .fresh import FreshModelConfig, read_fresh_model, train_tokenizer

if TYPE_CHECKING:
    from .model import SkipModel

_TOKENIZER_FILES = ("tokenizer_config.json", "special_tokens_map.json")


class StartModel(ABC):
    """A model to tune. ``spec`` is its structure, ``files`` are the tokenizer's, by published name.

    ``prompt_template`` is that of an earlier tuning; None if prompts were used as they were.
    """

    spec: ModelSpec
    family: TuningFamily
    files: dict[str, bytes]
    prompt_template: str | None = None

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer as the runtime reads it."""
        return Tokenizer.parse(self.files["tokenizer.json"], f"tokenizer of {self.spec.name}")

    @property
    def eos_token_id(self) -> int:
        """Token that ends a completion. Raises CheckpointError if the model has none."""
        if self.spec.eos_token_id is None:
            raise CheckpointError(
                self.spec.name,
                "has no eos_token_id; name the token that ends a text in config.json",
            )
        return self.spec.eos_token_id

    @abstractmethod
    def load(self) -> SkipModel:
        """Return the model in float32, with the same weights at each call."""


class CheckpointStart(StartModel):
    """A checkpoint directory, downloaded from the hub if necessary."""

    def __init__(self, model: str) -> None:
        directory = locate(CheckpointSource(model=model))
        self.path = directory.path
        self.spec = model_spec(_read_config(directory), directory.name)
        self.family = tuning_family(self.spec.family)
        self.prompt_template = read_template(directory.path)
        tokenizer = read_tokenizer(directory.path)
        if tokenizer is None:
            raise CheckpointError(model, "has no tokenizer files; put tokenizer.json beside it")
        others = [name for name in _TOKENIZER_FILES if (self.path / name).is_file()]
        self.files = {
            "tokenizer.json": tokenizer,
            **{name: (self.path / name).read_bytes() for name in others},
        }

    def load(self) -> SkipModel:
        """Read the weights."""
        return load_skip_model(self.path, self.spec.family)


class FreshStart(StartModel):
    """A new model with random weights, and a tokenizer trained on the data."""

    def __init__(self, config: FreshModelConfig, files: dict[str, bytes], seed: int) -> None:
        self.files = files
        self._document = fresh_document(config, self.tokenizer_size)
        self._seed = seed
        self.spec = model_spec(self._document, "from-scratch")
        self.family = tuning_family(self.spec.family)

    @property
    def tokenizer_size(self) -> int:
        """Vocabulary size of the trained tokenizer."""
        return Tokenizer.parse(self.files["tokenizer.json"], "tokenizer").vocab_size

    def load(self) -> SkipModel:
        """Draw the weights from the seed."""
        from transformers import set_seed

        from .model import ATTENTION

        set_seed(self._seed)
        model_class = self.family.model_class()
        config = model_class.config_class(**self._document, attn_implementation=ATTENTION)
        return model_class(config)


def open_start(config: TuneConfig, examples: Sequence[Example]) -> StartModel:
    """Return the start model of ``config``; a fresh tokenizer is trained on ``examples``.

    Raises CheckpointError or UnsupportedModelError if the checkpoint can't be tuned, and UsageError
    if the sizes of a fresh model are invalid.
    """
    if config.model is not None:
        return CheckpointStart(config.model)
    assert config.from_scratch is not None
    sizes = read_fresh_model(config.from_scratch)
    files = train_tokenizer(
        examples,
        vocab_size=config.vocab_size or DEFAULT_VOCAB_SIZE,
        separator=config.separator or DEFAULT_SEPARATOR,
    )
    return FreshStart(sizes, files, config.seed)


def _read_config(directory: CheckpointDirectory) -> dict[str, Any]:
    path: Path = directory.path / "config.json"
    try:
        document = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise CheckpointError(directory.name, f"config.json can't be read ({error})") from error
    if not isinstance(document, dict):
        raise CheckpointError(directory.name, "config.json is not a JSON object")
    return document
