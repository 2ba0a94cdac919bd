"""Damage a checkpoint's files: each must be read, or refused with one of our errors, in time.

    source scripts/setup_environment.sh && python scripts/attack/checkpoints.py --count 1000

Bytes of safetensors headers, of .bin archives and of the pickles inside them are changed or cut
off. Values in config.json of every family, and in its rope scaling, are replaced by numbers, texts,
lists or null. Components of tokenizer.json are replaced by invalid ones and by ones that multiply a
text or never end. Files become pipes, devices, directories or broken links, and directories become
other things that are often mistaken for a checkpoint.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch
from harness import CONFIG, FAMILIES
from safetensors.numpy import save_file
from safetensors.torch import save

from skipdec.engines.documents import parse_json
from skipdec.engines.errors import CheckpointError, SkipDecError
from skipdec.exporter.architecture.architecture import ARCHITECTURES, expected_tensors
from skipdec.exporter.architecture.llama.structure import LlamaSpec
from skipdec.exporter.architecture.model_config import model_spec
from skipdec.exporter.checkpoint.checkpoint import open_checkpoint
from skipdec.exporter.checkpoint.formats import map_bin, map_safetensors
from skipdec.exporter.checkpoint.tokenizer import byte_level_tokenizer
from skipdec.exporter.config import CheckpointSource

_SECONDS = 240  # in which a checkpoint must be read or refused
_ODD: tuple[object, ...] = (
    *(3, -1, 0, 1, -3, 10**9, 10**30, 10**400, 0.5, 1e300, 1e-300, float("nan"), float("inf")),
    *("", "3", "nonsense", "full_attention", True, False, None),
    *([], [3], {}, [[]], [None], {"a": 1}, [1e300] * 8, ["nonsense"] * 4, ["full_attention"] * 3),
)
_LAYERS: dict[str, object] = {
    "rms_norm_eps": 1e-5,
    "rope_theta": 1e4,
    "layer_types": ["full_attention"] * 4,
    "sliding_window": 16,
    "use_sliding_window": True,
    "max_window_layers": 2,
    "no_rope_layers": [1, 0, 1, 1],
    "partial_rotary_factor": 1.0,
    "attention_multiplier": 0.5,
    "eos_token_id": [2, 3],
    "pad_token_id": 0,
    "architectures": None,
    "tie_word_embeddings": True,
    "hidden_act": "silu",
}
_ROTATIONS: tuple[dict[str, object], ...] = (
    {"rope_type": "default"},
    {"rope_type": "linear", "factor": 2.0},
    {"rope_type": "dynamic", "factor": 2.0},
    {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    },
    {"rope_type": "yarn", "factor": 4.0, "attention_factor": 1.0, "beta_fast": 32, "mscale": 1.0},
    {"rope_type": "longrope", "factor": 2.0, "short_factor": [1.0] * 8, "attention_factor": 1.0},
)


def _replace(content: str) -> dict[str, object]:
    return {"type": "Replace", "pattern": {"String": "e"}, "content": content}


def _split(expression: str) -> dict[str, object]:
    pattern = {"Regex": expression}
    step = {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False}
    return {"pre_tokenizer": step}


_COMPONENTS: tuple[dict[str, object], ...] = (
    {"normalizer": {"type": "Sequence", "normalizers": [_replace("ee")] * 60}},
    {"normalizer": _replace("e" * 10_000)},
    {"normalizer": {"type": "Replace", "pattern": {"String": ""}, "content": "x"}},
    {"decoder": {"type": "Sequence", "decoders": [_replace("ee")] * 60}},
    *(_split(each) for each in ("(.|.)+$[A-Z]", "(", "", "(?=.)")),
    {"model": {"type": "Nonsense"}},
    {"decoder": {"type": "Nonsense"}},
    *({name: value} for name in ("added_tokens", "model", "post_processor") for value in _ODD),
)
_NAMES = (
    *("config.json", "generation_config.json", "model.safetensors", "tokenizer.json"),
    *("tokenizer_config.json", "tokenizer.model", "chat_template.jinja", "added_tokens.json"),
)
_KINDS: tuple[Callable[[Path], object], ...] = (
    os.mkfifo,
    Path.mkdir,
    lambda path: path.symlink_to("/dev/zero"),
    lambda path: path.symlink_to("nothing"),
    lambda path: path.symlink_to(path.name),
    lambda path: path.write_bytes(b""),
)


def main() -> None:
    """Print how many were read and how many refused; exit code 1 for any other outcome."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")  # torch warns about foreign pickles
    signal.signal(signal.SIGALRM, _expire)
    chance = random.Random(arguments.seed)
    seen: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as directory:
        whole = _whole_checkpoint(Path(directory) / "whole")
        for index in range(arguments.count):
            damaged = shutil.copytree(whole, Path(directory) / "damaged")
            attack = _ATTACKS[index % len(_ATTACKS)]
            outcome = _outcome(attack, damaged, chance)
            if outcome not in ("read", "refused"):
                outcome = f"{attack.__name__}: {outcome}"
            seen[outcome] += 1
            shutil.rmtree(damaged)
    print(", ".join(f"{count} {outcome}" for outcome, count in seen.most_common()))
    sys.exit(bool(seen.keys() - {"read", "refused"}))


def _expire(number: int, frame: FrameType | None) -> None:
    raise TimeoutError(f"took more than {_SECONDS} s")


def _outcome(
    attack: Callable[[Path, random.Random], None], directory: Path, chance: random.Random
) -> str:
    signal.alarm(_SECONDS)
    try:
        attack(directory, chance)
    except SkipDecError as error:
        str(error)
        return "refused"
    except BaseException as error:  # noqa: BLE001  (any foreign error is a finding)
        return f"{type(error).__name__}: {error}"[:200]
    finally:
        signal.alarm(0)
    return "read"


def _whole_checkpoint(directory: Path) -> Path:
    """Write a checkpoint of zeros with a byte-level tokenizer."""
    directory.mkdir()
    model = model_spec(CONFIG, "tiny")
    zeros = {name: np.zeros(shape, np.float32) for name, shape in expected_tensors(model).items()}
    save_file(zeros, directory / "model.safetensors")
    (directory / "config.json").write_text(json.dumps(CONFIG))
    tokenizer = byte_level_tokenizer(model)
    assert tokenizer is not None
    (directory / "tokenizer.json").write_bytes(tokenizer)
    return directory


def _open(directory: Path) -> None:
    open_checkpoint(CheckpointSource(model=str(directory)))


def attack_configuration(directory: Path, chance: random.Random) -> None:
    """Replace values of config.json, of any family, and of its rope scaling."""
    family = chance.choice(list(ARCHITECTURES))
    base = CONFIG if family == "opt" else {**FAMILIES["llama"], **_LAYERS, "model_type": family}
    config, rotation = dict(base), dict(chance.choice(_ROTATIONS))
    for _ in range(chance.choice((1, 1, 2))):
        changed = chance.choice((config, rotation))
        changed[chance.choice(list(changed))] = chance.choice(_ODD)
    config[chance.choice(("rope_scaling", "rope_parameters"))] = rotation
    generation = {"eos_token_id": chance.choice(_ODD)} if chance.random() < 0.2 else None
    document = parse_json(json.dumps(config), CheckpointError, subject="config.json")
    model = model_spec(document, "tiny", None, generation)
    if model.family != "opt":
        assert np.isfinite(LlamaSpec.of(model).frequencies()).all()


def attack_safetensors(directory: Path, chance: random.Random) -> None:
    """Change bytes of a safetensors file."""
    path = directory / "other.safetensors"
    path.write_bytes(_mutated(save(_state()), chance))
    map_safetensors(path)


def attack_bin(directory: Path, chance: random.Random) -> None:
    """Change bytes of a .bin file, or of the pickle in it."""
    archive = io.BytesIO()
    torch.save(_state(), archive)
    is_outside = chance.random() < 0.5
    path = directory / "pytorch_model.bin"
    path.write_bytes(
        _mutated(archive.getvalue(), chance)
        if is_outside
        else _with_another_pickle(archive, chance)
    )
    map_bin(path)


def attack_tokenizer(directory: Path, chance: random.Random) -> None:
    """Replace a component of tokenizer.json, or change its bytes."""
    path = directory / "tokenizer.json"
    if chance.random() < 0.2:
        path.write_bytes(_mutated(path.read_bytes(), chance))
    else:
        document: dict[str, Any] = json.loads(path.read_bytes())
        path.write_text(json.dumps(document | chance.choice(_COMPONENTS)))
    _open(directory)


def attack_kinds_of_files(directory: Path, chance: random.Random) -> None:
    """Put a pipe, a device, a directory, a broken link or nothing in place of a file."""
    path = directory / chance.choice(_NAMES)
    path.unlink(missing_ok=True)
    chance.choice(_KINDS)(path)
    _open(directory)
    if not path.is_file():
        raise AssertionError(f"{path.name} was taken as absent")


def attack_directory(directory: Path, chance: random.Random) -> None:
    """Turn a checkpoint into something often mistaken for one, with odd contents in its files."""
    weights = directory / "model.safetensors"
    name = chance.choice(
        ("adapter_model.safetensors", "model-00001-of-00002.safetensors", "tiny.gguf", "x.bin")
    )
    weights.rename(directory / name)
    odd = json.dumps({chance.choice(("weight_map", "peft_type")): chance.choice(_ODD)})
    names = ("adapter_config.json", "model.safetensors.index.json", "pytorch_model.bin.index.json")
    (directory / chance.choice(names)).write_text(odd)
    if chance.random() < 0.5:
        (directory / "config.json").unlink()
    _open(directory)


_ATTACKS = (
    attack_configuration,
    attack_safetensors,
    attack_configuration,
    attack_bin,
    attack_kinds_of_files,
    attack_configuration,
    attack_safetensors,
    attack_bin,
    attack_directory,
    attack_tokenizer,
)


def _state() -> dict[str, torch.Tensor]:
    state = {f"layer.{index}.weight": torch.ones(4, 3) for index in range(5)}
    return state | {"half": torch.ones(3).half(), "bfloat16": torch.ones(3).bfloat16()}


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
