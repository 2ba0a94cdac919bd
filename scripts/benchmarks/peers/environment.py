"""The peers' own Python environment, and each engine's conversion of one checkpoint."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

CONSTRAINTS = Path(__file__).parent / "constraints.txt"
CONVERTER = Path(__file__).parent / "gguf_file.py"
PACKAGES = (
    *("ctranslate2", "openvino", "openvino-genai", "optimum-intel"),
    *("llama-cpp-python", "gguf", "onnxruntime-genai", "onnx-ir", "onnx"),
)
_COMPILED_FOR_THIS_PROCESSOR = {"CMAKE_ARGS": "-DGGML_NATIVE=ON"}  # llama.cpp; takes minutes


@dataclass(frozen=True)
class Model:
    """A random model; ``options`` have Hugging Face's names and defaults."""

    config: str = "OPTConfig"  # a class of transformers
    options: Mapping[str, object] = field(default_factory=dict)

    @property
    def is_opt(self) -> bool:
        """True if the model is an OPT."""
        return self.config == "OPTConfig"


MODELS: Mapping[str, Model] = {
    "tiny": Model(
        options={
            "num_hidden_layers": 2,
            "hidden_size": 64,
            "num_attention_heads": 4,
            "ffn_dim": 256,
        }
    ),
    "opt-125m": Model(),
    "opt-1.3b": Model(
        options={
            "num_hidden_layers": 24,
            "hidden_size": 2048,
            "num_attention_heads": 32,
            "ffn_dim": 8192,
        }
    ),
    "llama-3.2-1b": Model(
        "LlamaConfig",
        {
            "num_hidden_layers": 16,
            "hidden_size": 2048,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "intermediate_size": 8192,
            "vocab_size": 128256,
            "max_position_embeddings": 8192,
            "rms_norm_eps": 1e-5,
            "rope_theta": 500000.0,
            "tie_word_embeddings": True,
        },
    ),
    "qwen2.5-0.5b": Model(
        "Qwen2Config",
        {
            "num_hidden_layers": 24,
            "hidden_size": 896,
            "num_attention_heads": 14,
            "num_key_value_heads": 2,
            "intermediate_size": 4864,
            "vocab_size": 151936,
            "max_position_embeddings": 8192,
            "rms_norm_eps": 1e-6,
            "rope_theta": 1000000.0,
            "tie_word_embeddings": True,
        },
    ),
}
_OPENVINO_WEIGHTS: Mapping[str, tuple[str, ...]] = {
    "int8": ("--weight-format", "int8"),
    "int4": ("--weight-format", "int4", "--sym", "--group-size", "128", "--ratio", "1.0"),
}
_LLAMA_CPP_WEIGHTS = {"int8": "Q8_0", "int4": "Q4_0"}


@dataclass(frozen=True)
class Environment:
    """A virtual environment at ``path``, made from benchmarks/peers/constraints.txt."""

    path: Path

    @property
    def python(self) -> Path:
        """Path of its interpreter."""
        return self.path / "bin/python"

    def prepare(self) -> None:
        """Create the environment unless it was created from the same list."""
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
        environment = {**os.environ, **_COMPILED_FOR_THIS_PROCESSOR}
        subprocess.run([*install, *PACKAGES], check=True, env=environment)
        # optimum-intel requires it, nothing here uses it, and its build may not match torch's.
        subprocess.run([*pip, "uninstall", "--quiet", "--yes", "torchvision"], check=True)
        stamp.write_text(wanted)

    def versions(self) -> dict[str, str]:
        """Return the peers' versions."""
        lines = CONSTRAINTS.read_text().split()
        pinned = dict(line.split("==") for line in lines if "==" in line)
        return {package: pinned[package] for package in PACKAGES}

    def convert(self, model: str, weights: str) -> dict[str, Path]:
        """Return directories by engine, creating missing ones with each engine's tool.

        skipdec's is always exported again by the current working tree.
        """
        work = self.path / "models" / model
        checkpoint = work / "checkpoint"
        if not (checkpoint / "tokenizer.json").exists():
            write_checkpoint(MODELS[model], checkpoint)
        outputs: dict[str, Path] = {}
        for engine, (name, command) in self._conversions(model, weights, checkpoint).items():
            outputs[engine] = work / f"{name}-{weights}"
            done = work / f"{outputs[engine].name}.done"
            if not done.exists() or engine == "skipdec":
                outputs[engine].mkdir(exist_ok=True)
                words = [str(word).format(output=outputs[engine]) for word in command]
                subprocess.run(words, check=True, stdout=sys.stderr)
                done.touch()
        return outputs

    def _conversions(
        self, model: str, weights: str, checkpoint: Path
    ) -> dict[str, tuple[str, tuple[str | Path, ...]]]:
        """Return, by engine, the output's name and the command, with ``{output}`` in its place."""
        found: dict[str, tuple[str, tuple[str | Path, ...]]] = {
            "skipdec": (
                "skipdec",
                (
                    *(Path(sys.executable).parent / "skipdec-export", checkpoint, "-q"),
                    *("--no-verify", "--quantize", weights, "--force", "-o", "{output}"),
                ),
            ),
            "OpenVINO": (
                "openvino",
                (
                    *(self.path / "bin/optimum-cli", "export", "openvino", "--model", checkpoint),
                    *("--task", "text-generation-with-past", *_OPENVINO_WEIGHTS[weights]),
                    "{output}",
                ),
            ),
        }
        if MODELS[model].is_opt:
            if weights == "int8":
                found["CTranslate2"] = (
                    "ctranslate2",
                    (
                        *(self.python, self.path / "bin/ct2-transformers-converter", "--model"),
                        *(checkpoint, "--quantization", "int8", "--force", "--output_dir"),
                        "{output}",
                    ),
                )
            return found
        kind = _LLAMA_CPP_WEIGHTS[weights]
        found["llama.cpp"] = (
            "llama.cpp",
            (self.python, CONVERTER, checkpoint, "{output}/model.gguf", kind),
        )
        if weights == "int4":
            found["ONNX Runtime GenAI"] = (
                "onnxruntime-genai",
                (
                    *(self.python, "-m", "onnxruntime_genai.models.builder", "-i", checkpoint),
                    *("-o", "{output}", "-p", "int4", "-e", "cpu"),
                    *("--extra_options", "int4_accuracy_level=4"),
                ),
            )
        return found


def write_checkpoint(model: Model, directory: Path) -> None:
    """Write a seeded random float16 model with one word per token id."""
    import torch
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers

    torch.manual_seed(0)
    special: dict[str, object] = {} if model.is_opt else {"bos_token_id": 2, "eos_token_id": 2}
    config = getattr(transformers, model.config)(**model.options, **special)
    transformers.AutoModelForCausalLM.from_config(config).half().save_pretrained(directory)
    words = {f"t{index}": index for index in range(config.vocab_size)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="t3"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="t2", eos_token="t2", unk_token="t3", pad_token="t1"
    ).save_pretrained(directory)
