"""Write a LLaMA or Qwen2 checkpoint as GGUF files for llama.cpp, quantised by its own tool.

    python gguf_file.py CHECKPOINT OUTPUT Q8_0

This runs in the peers' environment. The file has no tokenizer, since prompts are token ids.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import gguf
import llama_cpp
import numpy as np
from safetensors import safe_open

_OUTER = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
_INNER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def main(checkpoint: str, output: str, kind: str) -> None:
    """Write ``output`` with float16 weights, then replace it by one of ``kind``."""
    plain = Path(f"{output}.f16")
    _write_plain(Path(checkpoint), plain)
    parameters = llama_cpp.llama_model_quantize_default_params()
    parameters.ftype = getattr(llama_cpp, f"LLAMA_FTYPE_MOSTLY_{kind}")
    status = llama_cpp.llama_model_quantize(str(plain).encode(), output.encode(), parameters)
    plain.unlink()
    if status != 0:
        sys.exit(f"llama.cpp could not quantise {checkpoint} to {kind} (status {status})")


def _write_plain(checkpoint: Path, output: Path) -> None:
    config = json.loads((checkpoint / "config.json").read_text())
    family, heads = config["model_type"], config["num_attention_heads"]
    head_size = config.get("head_dim") or config["hidden_size"] // heads
    theta = (config.get("rope_parameters") or config)["rope_theta"]
    writer = gguf.GGUFWriter(output, family)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(head_size)
    writer.add_value_length(head_size)
    writer.add_rope_dimension_count(head_size)
    writer.add_rope_freq_base(theta)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("none")
    with safe_open(checkpoint / "model.safetensors", "numpy") as tensors:
        for name in tensors.keys():  # noqa: SIM118  (not a mapping)
            values = tensors.get_tensor(name)
            if family == "llama" and name.endswith(("q_proj.weight", "k_proj.weight")):
                values = _pairs(values, head_size)
            # llama.cpp reads norms and biases as float32
            writer.add_tensor(
                _name(name), values.astype(np.float32) if values.ndim == 1 else values
            )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _name(name: str) -> str:
    if name in _OUTER:
        return _OUTER[name]
    _, _, layer, rest = name.split(".", 3)
    module, _, kind = rest.rpartition(".")
    return f"blk.{layer}.{_INNER[module]}.{kind}"


def _pairs(weight: np.ndarray, head_size: int) -> np.ndarray:
    """Reorder each head's rows from halves to pairs, as llama.cpp rotates LLaMA's heads."""
    halves = weight.reshape(-1, 2, head_size // 2, weight.shape[1])  # [heads, 2, D/2, hidden]
    return halves.swapaxes(1, 2).reshape(weight.shape)


if __name__ == "__main__":
    main(*sys.argv[1:])
