"""A byte-level BPE tokenizer trained on the data of a fresh model."""

from __future__ import annotations

import json
from collections.abc import Sequence

from ..engines.errors import UsageError
from .data import Example

BOS, PAD, EOS, UNK = "<s>", "<pad>", "</s>", "<unk>"  # ids 0 to 3, the separator's is 4
_SPECIAL_TOKENS = (BOS, PAD, EOS, UNK)


def train_tokenizer(
    examples: Sequence[Example], *, vocab_size: int, separator: str
) -> dict[str, bytes]:
    """Return the content of tokenizer.json and tokenizer_config.json.

    The post-processor puts ``<s>`` before a prompt and ``separator`` behind it, so that a bare
    prompt works wherever the tokenizer goes: ``name[A]`` becomes ``<s>name[A]<sep>``. Equal data
    gives equal bytes. Raises UsageError where the data holds the text of a special token.
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
            f"holds {', '.join(found)}, which a fresh tokenizer uses as a special token; remove it "
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
