"""The ways in which each peer is run; the fastest one of each cell stands for it.

CTranslate2's compute types are those that it offers on a CPU for int8 weights; with CT2_USE_MKL its
products come from MKL also where the processor is not Intel's. OpenVINO runs bfloat16 where the
processor has it, an 8-bit KV cache and activations quantised in groups of 32 unless told otherwise;
its guides name the precision hint, the cache's precision and the group's size as what to tune for a
CPU, and its own pipeline (openvino-genai, with either of its attention backends) beside
optimum-intel's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Configuration:
    """How one engine of bench/peers/worker.py is started."""

    engine: str  # of worker.ENGINES
    options: Mapping[str, object] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)


_WHOLE_ROWS = (1 << 64) - 1  # one scale for all activations of a row

CONFIGURATIONS: Mapping[str, Mapping[str, Configuration]] = {
    "skipdec": {"": Configuration("skipdec")},
    "CTranslate2": {
        "int8": Configuration("ctranslate2", {"compute_type": "int8"}),
        "int8_bfloat16": Configuration("ctranslate2", {"compute_type": "int8_bfloat16"}),
        "int8, MKL": Configuration("ctranslate2", {"compute_type": "int8"}, {"CT2_USE_MKL": "1"}),
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
        "genai, PA, float32": Configuration(
            "genai", {"ATTENTION_BACKEND": "PA", "INFERENCE_PRECISION_HINT": "f32"}
        ),
        "genai, SDPA, float16 cache, whole rows": Configuration(
            "genai",
            {
                "ATTENTION_BACKEND": "SDPA",
                "KV_CACHE_PRECISION": "f16",
                "DYNAMIC_QUANTIZATION_GROUP_SIZE": _WHOLE_ROWS,
            },
        ),
    },
}
