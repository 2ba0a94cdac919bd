"""The ways in which each peer is run; the fastest one of each cell stands for it.

CTranslate2's compute types are those that it offers on a CPU for int8 weights (its products come
from MKL on Intel's processors; forced on an AMD EPYC, they took eight times as long). OpenVINO runs
bfloat16 where the processor has it, an 8-bit KV cache and activations quantised in groups of 32
unless told otherwise, the fastest choice of precisions; its guides name the group's size as what to
tune, and its own pipeline (openvino-genai, with either of its attention backends) beside
optimum-intel's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Configuration:
    """How one engine of benchmarks/peers/worker.py is started."""

    engine: str  # of worker.ENGINES
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
}
