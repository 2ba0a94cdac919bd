"""The start of a tuning: the weights and tokenizer of a checkpoint or of a new model."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from ...engines.bundle.place import TOKENIZER_NAME
from ...engines.errors import CheckpointError, ConfigurationError, UsageError
from ...engines.manifest import ModelSpec
from ...exporter.architecture.model_config import model_spec
from ...exporter.checkpoint.chat import parse_tokenizer
from ...exporter.checkpoint.checkpoint import Checkpoint, open_checkpoint
from ...exporter.checkpoint.mistaken import ADAPTER_NAME
from ...exporter.checkpoint.tokenizer import TEXT_FILES
from ...exporter.config import CheckpointSource
from ...runtime.tokens.tokenizer import Tokenizer
from ..data.chats import Conversation
from ..data.data import Example
from ..data.lengths import opened_length
from .config import DEFAULT_VOCAB_SIZE, TuneConfig
from .family import FreshModelConfig, load_skip_model, tuning_family

if TYPE_CHECKING:
    from .model import SkipModel

TOKEN_IDS = {"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2}
_SEPARATOR = "<sep>"
_SPECIAL_TOKENS = ("<s>", "<pad>", "</s>", "<unk>", _SEPARATOR)  # ids 0 to 4


@dataclass(frozen=True)
class StartModel:
    """A model to tune. ``spec`` is its structure.

    ``files``, by published name, are the tokenizer's and other small files that the result gets
    unchanged. ``load`` returns the model in float32, with the same weights at each call.
    ``checkpoint`` is None for a new model.
    """

    spec: ModelSpec
    files: dict[str, bytes]
    load: Callable[[], SkipModel]
    checkpoint: Checkpoint | None = None

    @property
    def prompt_template(self) -> str | None:
        """The template of an earlier tuning; None if prompts were used as they were."""
        return None if self.checkpoint is None else self.checkpoint.prompt_template

    def open_tokenizer(self) -> Tokenizer:
        """Return the tokenizer as the runtime reads it, which the caller closes."""
        if self.checkpoint is not None:
            return self.checkpoint.open_tokenizer()
        return parse_tokenizer(self.files[TOKENIZER_NAME], None, self.spec.name)


def open_start(config: TuneConfig, examples: Sequence[Example]) -> StartModel:
    """Return the start model of ``config``; a new model's tokenizer is trained on ``examples``.

    Downloads a model from the hub. Raises CheckpointError or UnsupportedModelError if the
    checkpoint can't be tuned, and UsageError if the sizes of a new model are invalid or its data
    has chats.
    """
    if config.model is not None:
        return _open_checkpoint(config.model, config.max_length)
    assert config.from_scratch is not None
    sizes = read_fresh_model(config.from_scratch)
    files = train_tokenizer(examples, vocab_size=config.vocab_size or DEFAULT_VOCAB_SIZE)
    name = "from-scratch"
    fresh = parse_tokenizer(files[TOKENIZER_NAME], None, name)
    document = fresh_document(sizes, fresh.vocab_size)
    spec = model_spec(document, name, opened_length(config.max_length))
    return StartModel(spec, files, partial(_draw_weights, spec.family, document, config.seed))


def _open_checkpoint(model: str, max_length: int | None) -> StartModel:
    source = CheckpointSource(model=model, max_seq_len=opened_length(max_length))
    checkpoint = open_checkpoint(source)
    path, spec = checkpoint.directory, checkpoint.model
    assert path is not None  # only random weights have no directory
    if (path / ADAPTER_NAME).exists():
        raise CheckpointError(
            model,
            f"holds {ADAPTER_NAME}, whose adapter transformers would add to the weights; move the "
            "adapter's files away if it is merged into them already, else merge it first",
        )
    tuning_family(spec.family)  # refuses other families
    others = [name for name in TEXT_FILES if (path / name).is_file()]
    files = {TOKENIZER_NAME: checkpoint.require_tokenizer()}
    files |= {name: (path / name).read_bytes() for name in others}
    return StartModel(spec, files, partial(load_skip_model, path, spec.family), checkpoint)


def _draw_weights(family: str, document: dict[str, Any], seed: int) -> SkipModel:
    from transformers import set_seed

    from .model import ATTENTION
    from .skip_models import MODEL_CLASSES

    set_seed(seed)
    model_class = MODEL_CLASSES[family]
    return model_class(model_class.config_class(**document, attn_implementation=ATTENTION))


def read_fresh_model(text: str) -> FreshModelConfig:
    """Parse ``layers=12,width=256,heads=4[,ffn=1024,positions=256,…]``.

    ``family=llama,layers=12,width=256,heads=8,kv_heads=2`` is a model of a family other than OPT.
    Raises UsageError with every problem.
    """
    values: dict[str, Any] = {}
    subject = f"from_scratch {text!r}"
    for part in text.split(","):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or name in values:
            raise UsageError(
                subject,
                f"{part!r} is not NAME=NUMBER, or given twice; e.g. layers=12,width=256,heads=4",
            )
        values[name] = value
    try:
        return FreshModelConfig(**values)
    except ConfigurationError as error:
        raise UsageError(subject, *error.problems) from None


def fresh_document(sizes: FreshModelConfig, vocab_size: int) -> dict[str, Any]:
    """Return config.json of a new model with a vocabulary of ``vocab_size`` tokens."""
    config = tuning_family(sizes.family).fresh_config(sizes)
    return {**config, "vocab_size": vocab_size, **TOKEN_IDS}


def train_tokenizer(examples: Sequence[Example], *, vocab_size: int) -> dict[str, bytes]:
    """Return the content of tokenizer.json and tokenizer_config.json.

    The post-processor adds ``<s>`` before a prompt and ``<sep>`` after it, so that a bare prompt
    works wherever the tokenizer is used: ``name[A]`` becomes ``<s>name[A]<sep>``. Equal data gives
    equal bytes. Raises UsageError if the data contains the text of a special token, or chats,
    for which a new model has no template.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    texts = [text for example in examples for text in (str(example.prompt), example.completion)]
    for example in examples:
        if isinstance(example.prompt, Conversation):
            raise UsageError(
                "data",
                f"{example.source} has messages, and a fresh model has no chat template; tune a "
                "checkpoint that has one, or give prompts and completions",
            )
    found = [token for token in _SPECIAL_TOKENS if any(token in text for text in texts)]
    if found:
        raise UsageError(
            "data",
            f"contains {', '.join(found)}, special in a fresh tokenizer; remove it "
            "from the texts or templates",
        )
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(_SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"<s> $A {_SEPARATOR}",
        special_tokens=[(token, _SPECIAL_TOKENS.index(token)) for token in ("<s>", _SEPARATOR)],
    )
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "pad_token": "<pad>",
        "unk_token": "<unk>",
    }
    return {
        TOKENIZER_NAME: tokenizer.to_str(pretty=True).encode(),
        "tokenizer_config.json": (json.dumps(config, indent=2) + "\n").encode(),
    }
