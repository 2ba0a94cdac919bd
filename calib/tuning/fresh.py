"""Create a fresh model: parse its sizes or a config.json, train its tokenizer on the data."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from ...engines.checking import ValidatedConfig
from ...engines.errors import UsageError, did_you_mean
from ..data.data import Example

TOKEN_IDS = {"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2}
BOS, PAD, EOS, UNK = "<s>", "<pad>", "</s>", "<unk>"  # ids 0 to 3; the separator is 4
_SPECIAL_TOKENS = (BOS, PAD, EOS, UNK)


class FreshModelConfig(ValidatedConfig):
    """Sizes of a new model; ``ffn`` None means four times the width.

    ``base`` is a whole config.json, of any family, whose vocabulary and token ids are replaced.
    """

    layers: int = Field(ge=1)
    width: int = Field(ge=8)
    heads: int = Field(ge=1)
    ffn: int | None = Field(default=None, ge=1)
    positions: int = Field(default=256, ge=2)
    dropout: float = Field(default=0.0, ge=0, lt=1)
    base: dict[str, Any] | None = None

    def _problems(self) -> Iterator[str]:
        if self.width % (8 * self.heads):
            yield (
                f"`width` is {self.width} and `heads` is {self.heads}; allowed: heads whose width "
                "is a multiple of 8, as the exporter requires"
            )

    @classmethod
    def _describe(cls, item: Any, values: Mapping[str, Any]) -> Iterator[str]:  # noqa: ANN401
        """Describe an unknown name, which comes from a text and so can't mean ``base``."""
        if item["type"] == "extra_forbidden":
            allowed = [name for name in cls.model_fields if name != "base"]
            name = item["loc"][0]
            meant = did_you_mean(name, allowed)
            yield f"{name} is unknown; {meant}allowed: {', '.join(allowed)}"
        else:
            yield from super()._describe(item, values)


def read_fresh_model(text: str) -> FreshModelConfig:
    """Parse ``layers=12,width=256,heads=4[,ffn=1024,positions=256,dropout=0.1]`` or a .json file.

    Raises UsageError with every problem.
    """
    if text.endswith(".json"):
        return _read_file(Path(text))
    values: dict[str, Any] = {}
    for part in text.split(","):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or name in values or name == "base":
            raise UsageError(
                f"from_scratch {text!r}",
                f"{part!r} is not NAME=NUMBER, or given twice; e.g. layers=12,width=256,heads=4",
            )
        values[name] = value
    return FreshModelConfig(**values)


def _read_file(path: Path) -> FreshModelConfig:
    try:
        document = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise UsageError(f"from_scratch {path}", f"can't be read as JSON ({error})") from error
    names = ("num_hidden_layers", "hidden_size", "num_attention_heads", "max_position_embeddings")
    missing = [name for name in names if not isinstance(document, dict) or name not in document]
    if missing:
        raise UsageError(f"from_scratch {path}", f"lacks {', '.join(missing)}; add them")
    layers, width, heads, positions = (document[name] for name in names)
    return FreshModelConfig(
        layers=layers, width=width, heads=heads, positions=positions, base=document
    )


def train_tokenizer(
    examples: Sequence[Example], *, vocab_size: int, separator: str
) -> dict[str, bytes]:
    """Return the content of tokenizer.json and tokenizer_config.json.

    The post-processor adds ``<s>`` before a prompt and ``separator`` after it, so that a bare
    prompt works wherever the tokenizer goes: ``name[A]`` becomes ``<s>name[A]<sep>``. Equal data
    gives equal bytes. Raises UsageError if the data contains the text of a special token.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    special = [*_SPECIAL_TOKENS, separator]
    if len(set(special)) < len(special):
        raise UsageError("separator", f"is {separator!r}; allowed: none of {_SPECIAL_TOKENS}")
    texts = [text for example in examples for text in (example.prompt, example.completion)]
    found = [token for token in special if any(token in text for text in texts)]
    if found:
        raise UsageError(
            "data",
            f"contains {', '.join(found)}, special in a fresh tokenizer; remove it "
            "from the texts or templates, or choose another separator",
        )
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=special,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A {separator}",
        special_tokens=[(token, special.index(token)) for token in (BOS, separator)],
    )
    names = {"bos_token": BOS, "eos_token": EOS, "pad_token": PAD, "unk_token": UNK}
    config = {"tokenizer_class": "PreTrainedTokenizerFast", **names}
    return {
        "tokenizer.json": tokenizer.to_str(pretty=True).encode(),
        "tokenizer_config.json": (json.dumps(config, indent=2) + "\n").encode(),
    }
