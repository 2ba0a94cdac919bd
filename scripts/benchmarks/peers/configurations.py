"""Configurations of each peer; the fastest one per cell is compared.

skipdec copies its weights into memory; its steps are those of ``skipdec bench BUNDLE --prompt-len
32 --gen-len 44 --config FILE`` with ``weights: copied`` in the file.
CTranslate2's compute types are those that it offers on a CPU for int8 weights. Its products come
from MKL on Intel processors; forced on an AMD EPYC, MKL took eight times as long. By default,
OpenVINO uses bfloat16 if the processor supports it, an 8-bit KV cache, and activations quantised in
groups of 32, its fastest precisions; its guides recommend tuning the group size. Its own pipeline
(openvino-genai, with either attention backend) is tested beside optimum-intel's. llama.cpp is
compiled for this processor, without mmap, and repacks weights of 4 bits, its default.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Configuration:
    """Arguments for one engine of benchmarks/peers/worker.py."""

    engine: str  # one of worker.ENGINES
    options: Mapping[str, object] = field(default_factory=dict)


_WHOLE_ROWS = str((1 << 64) - 1)  # one scale for all activations of a row

CONFIGURATIONS: Mapping[str, Mapping[str, Configuration]] = {
    "skipdec": {"": Configuration("skipdec", {"weights": "copied"})},
    "CTranslate2": {
        "int8": Configuration("ctranslate2", {"compute_type": "int8"}),
        "int8_bfloat16": Configuration("ctranslate2", {"compute_type": "int8_bfloat16"}),
    },
    "OpenVINO": {
        "optimum-intel": Configuration("optimum"),
        "genai, PA": Configuration("genai", {"ATTENTION_BACKEND": "PA"}),
        "genai, SDPA": Configuration("genai", {"ATTENTION_BACKEND": "SDPA"}),
        "genai, PA, groups of 128": Configuration(
            "genai", {"ATTENTION_BACKEND": "PA", "DYNAMIC_QUANTIZATION_GROUP_SIZE": 128}
        ),
        "genai, PA, whole rows": Configuration(
            "genai", {"ATTENTION_BACKEND": "PA", "DYNAMIC_QUANTIZATION_GROUP_SIZE": _WHOLE_ROWS}
        ),
    },
    "llama.cpp": {
        "flash attention": Configuration("llama.cpp", {"flash_attn_type": 1}),
        "no flash attention": Configuration("llama.cpp", {"flash_attn_type": 0}),
    },
    "ONNX Runtime GenAI": {
        "": Configuration("onnxruntime-genai"),
        "caches shared": Configuration("onnxruntime-genai", {"past_present_share_buffer": True}),
    },
}
