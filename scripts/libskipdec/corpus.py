"""Write the fuzzing corpus of libskipdec's parsers: files of tiny bundles, and tokenizers.

    python scripts/libskipdec/corpus.py DIRECTORY

The new DIRECTORY gets ``manifest/``, ``schedule/`` and ``tokenizer/`` with seeds for the mutations
of tests/runtime/libskipdec/fuzz/fuzzing.cpp. Takes two exports of some seconds each.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "attack"))
from harness import tiny_bundle

import skipdec
from libskipdec.token_files import KINDS, tokenizer_file

ROOT = Path(__file__).parents[2]
SCHEDULES = ("full", "2x:horizon=64", "linear:max=4,min=2,warmup=1,horizon=17", "2x:prompt=decay")


def main() -> None:
    """Write the corpus into the directory of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    directory = parser.parse_args().directory
    for kind in ("manifest", "schedule", "tokenizer"):
        (directory / kind).mkdir(parents=True)
    with tempfile.TemporaryDirectory() as work:
        for quantize in ("none", "int8"):
            _keep(tiny_bundle(Path(work, quantize), quantize=quantize), directory, quantize)
    for vocab_size in (300, 1000):
        trained = _trained_tokenizer(vocab_size)
        trained.save(str(directory / "tokenizer" / f"merges{vocab_size}.json"), pretty=False)
    for kind in KINDS:
        tokenizer_file(kind, directory / "tokenizer", vocab_size=400)


def _keep(bundle: Path, directory: Path, name: str) -> None:
    for kind in ("manifest", "tokenizer"):
        shutil.copy(bundle / f"{kind}.json", directory / kind / f"{name}.json")
    for index, text in enumerate(SCHEDULES):
        skipdec.write_schedule(bundle, text, horizon=40)
        shutil.copy(bundle / "schedule.json", directory / "schedule" / f"{name}{index}.json")


def _trained_tokenizer(vocab_size: int) -> Tokenizer:
    """Return a byte-level BPE like OPT's, with merges trained on this repository's texts."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train([str(ROOT / "README.md")], trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="</s> $A", special_tokens=[("</s>", 2)]
    )
    return tokenizer


if __name__ == "__main__":
    main()
