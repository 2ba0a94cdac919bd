"""The peers' own Python environment, and each engine's conversion of one checkpoint."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

CONSTRAINTS = Path(__file__).parent / "constraints.txt"
PACKAGES = ("ctranslate2", "openvino", "openvino-genai", "optimum-intel")

# Hugging Face's names; omitted values are opt-125m's.
MODELS: dict[str, dict[str, int]] = {
    "tiny": {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "ffn_dim": 256},
    "opt-125m": {},
    "opt-1.3b": {
        "num_hidden_layers": 24,
        "hidden_size": 2048,
        "num_attention_heads": 32,
        "ffn_dim": 8192,
    },
}
_OPENVINO_WEIGHTS: Mapping[str, tuple[str, ...]] = {
    "int8": ("--weight-format", "int8"),
    "int4": ("--weight-format", "int4", "--sym", "--group-size", "128", "--ratio", "1.0"),
}


@dataclass(frozen=True)
class Environment:
    """A virtual environment at ``path``, made from benchmarks/peers/constraints.txt."""

    path: Path

    @property
    def python(self) -> Path:
        """Path of its interpreter."""
        return self.path / "bin/python"

    def prepare(self) -> None:
        """Create it unless it was created from the same list."""
        stamp = self.path / "stamp"
        wanted = hashlib.sha256(CONSTRAINTS.read_bytes()).hexdigest()
        if stamp.exists() and stamp.read_text() == wanted:
            return
        subprocess.run([sys.executable, "-m", "venv", "--clear", self.path], check=True)
        pip: list[str | Path] = [self.python, "-m", "pip"]
        install = [*pip, "install", "--quiet", "--constraint", CONSTRAINTS]
        torch = next(line for line in CONSTRAINTS.read_text().split() if line.startswith("torch=="))
        subprocess.run(
            [*install, "setuptools", torch], check=True
        )  # first, so that the CPU build is taken
        subprocess.run([*install, *PACKAGES], check=True)
        # optimum-intel requires it, nothing here uses it, and its build may not match torch's.
        subprocess.run([*pip, "uninstall", "--quiet", "--yes", "torchvision"], check=True)
        stamp.write_text(wanted)

    def versions(self) -> dict[str, str]:
        """Return the peers' versions."""
        lines = CONSTRAINTS.read_text().split()
        pinned = dict(line.split("==") for line in lines if "==" in line)
        return {package: pinned[package] for package in PACKAGES}

    def convert(self, model: str, weights: str, work: Path, *, keep: bool) -> dict[str, Path]:
        """Return directories by engine in ``work``, creating missing ones with each engine's tool.

        skipdec's is always exported again by the current working tree unless ``keep``.
        """
        checkpoint = work / "checkpoint"
        if not (checkpoint / "tokenizer.json").exists():
            write_checkpoint(model, checkpoint)
        outputs = {"skipdec": work / f"skipdec-{weights}", "OpenVINO": work / f"openvino-{weights}"}
        commands: dict[str, list[str | Path]] = {
            "skipdec": [
                *(Path(sys.executable).parent / "skipdec-export", checkpoint, "-q", "--no-verify"),
                *("--quantize", weights, "--force", "-o", outputs["skipdec"]),
            ],
            "OpenVINO": [
                *(self.path / "bin/optimum-cli", "export", "openvino", "--model", checkpoint),
                *("--task", "text-generation-with-past", *_OPENVINO_WEIGHTS[weights]),
                outputs["OpenVINO"],
            ],
        }
        if weights == "int8":
            outputs["CTranslate2"] = work / "ctranslate2-int8"
            commands["CTranslate2"] = [
                *(self.python, self.path / "bin/ct2-transformers-converter", "--model", checkpoint),
                *("--quantization", "int8", "--force", "--output_dir", outputs["CTranslate2"]),
            ]
        for engine, command in commands.items():
            done = work / f"{outputs[engine].name}.done"
            if not done.exists() or (engine == "skipdec" and not keep):
                subprocess.run(command, check=True, stdout=sys.stderr)
                done.touch()
        return outputs


def write_checkpoint(name: str, directory: Path) -> None:
    """Write a seeded random float16 model like OPT's, with one word per token id."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import OPTConfig, OPTForCausalLM, PreTrainedTokenizerFast

    torch.manual_seed(0)
    config = OPTConfig(**MODELS[name])
    OPTForCausalLM(config).half().save_pretrained(directory)
    words = {f"t{index}": index for index in range(config.vocab_size)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="t3"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="t2", eos_token="t2", unk_token="t3", pad_token="t1"
    ).save_pretrained(directory)
