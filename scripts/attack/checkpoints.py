"""Damage weight files and config.json: each must be read, or refused with one of our errors.

    source scripts/setup_environment.sh && python scripts/attack/checkpoints.py --count 1000

Bytes of safetensors headers, of .bin archives and of the pickles inside them are changed or cut
off; values in config.json are replaced by numbers, texts, lists or null.
"""

from __future__ import annotations

import argparse
import io
import json
import random
import sys
import tempfile
import warnings
import zipfile
from collections import Counter
from pathlib import Path

import torch
from harness import CONFIG
from safetensors.torch import save

from skipdec.engines.documents import parse_json
from skipdec.engines.errors import CheckpointError, SkipDecError
from skipdec.exporter.architecture.model_config import model_spec
from skipdec.exporter.checkpoint.formats import map_bin, map_safetensors

_ODD: tuple[object, ...] = (
    3,
    -1,
    0,
    10**9,
    10**30,
    0.5,
    1e300,
    "",
    "3",
    True,
    None,
    [],
    [3],
    {},
    [[]],
)


def main() -> None:
    """Print how many were read and how many refused; exit code 1 for any other outcome."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")  # torch warns about foreign pickles
    chance = random.Random(arguments.seed)
    seen: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as directory:
        for name, content in (_damaged(chance) for _ in range(arguments.count)):
            path = Path(directory) / name
            path.write_bytes(content)
            seen[_outcome(path)] += 1
            path.unlink()
    print(", ".join(f"{count} {outcome}" for outcome, count in seen.most_common()))
    sys.exit(bool(seen.keys() - {"read", "refused"}))


def _outcome(path: Path) -> str:
    try:
        if path.suffix == ".json":
            document = parse_json(path.read_bytes(), CheckpointError, subject=path.name)
            model_spec(document if isinstance(document, dict) else {}, "tiny")
        elif path.suffix == ".bin":
            map_bin(path)
        else:
            map_safetensors(path)
    except SkipDecError:
        return "refused"
    except BaseException as error:  # noqa: BLE001  (any foreign error is a finding)
        return f"{type(error).__name__}: {error}"[:200]
    return "read"


def _damaged(chance: random.Random) -> tuple[str, bytes]:
    """Return a file's name and content."""
    state = {f"layer.{index}.weight": torch.ones(4, 3) for index in range(5)}
    state |= {"half": torch.ones(3).half(), "bfloat16": torch.ones(3).bfloat16()}
    kind = chance.randrange(4)
    if kind == 0:
        return "model.safetensors", _mutated(save(state), chance)
    if kind == 1:
        config = CONFIG | {chance.choice(list(CONFIG)): chance.choice(_ODD)}
        return "config.json", json.dumps(config).encode()
    archive = io.BytesIO()
    torch.save(state, archive)
    if kind == 2:
        return "pytorch_model.bin", _mutated(archive.getvalue(), chance)
    return "pytorch_model.bin", _with_another_pickle(archive, chance)


def _mutated(content: bytes, chance: random.Random) -> bytes:
    """Change some bytes, most of them near the beginning, or cut off the end."""
    if chance.random() < 0.2:
        return content[: chance.randrange(len(content))]
    changed = bytearray(content)
    for _ in range(chance.choice((1, 1, 3, 20))):
        last = min(len(changed), 1200) if chance.random() < 0.7 else len(changed)
        changed[chance.randrange(last)] = chance.randrange(256)
    return bytes(changed)


def _with_another_pickle(archive: io.BytesIO, chance: random.Random) -> bytes:
    """Return the archive with a damaged pickle but valid checksums."""
    changed = io.BytesIO()
    with zipfile.ZipFile(archive) as source, zipfile.ZipFile(changed, "w") as target:
        for name in source.namelist():
            content = source.read(name)
            target.writestr(name, _mutated(content, chance) if name.endswith(".pkl") else content)
    return changed.getvalue()


if __name__ == "__main__":
    main()
