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

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "attack"))
from harness import tiny_bundle

import skipdec
from libskipdec.token_files import KINDS, tokenizer_file

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
    large = tokenizer_file("opt_like", directory / "tokenizer", vocab_size=1000)
    large.rename(large.with_name("merges1000.json"))
    for kind in KINDS:
        tokenizer_file(kind, directory / "tokenizer", vocab_size=400)


def _keep(bundle: Path, directory: Path, name: str) -> None:
    for kind in ("manifest", "tokenizer"):
        shutil.copy(bundle / f"{kind}.json", directory / kind / f"{name}.json")
    for index, text in enumerate(SCHEDULES):
        skipdec.write_schedule(bundle, text, horizon=40)
        shutil.copy(bundle / "schedule.json", directory / "schedule" / f"{name}{index}.json")


if __name__ == "__main__":
    main()
