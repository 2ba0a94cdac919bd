"""The manifest of a bundle, as manifest.json has it, and its parts."""

from ..documents import json_digest
from .engine_spec import (
    DRAFT_ENTRY,
    DRAFT_HEAD,
    DRAFT_LAYER,
    DRAFT_STATES,
    NUM_CANDIDATES,
    NUM_JOINED,
    PAST_OF,
    TRAINED_HEAD,
    BuildSpec,
    DraftHead,
    EngineKind,
    EngineSpec,
    FileRecord,
    KVBucket,
    TensorRole,
    TensorSpec,
    TrainedDraft,
)
from .fields import MAX_LAYERS, MAX_TOKENS, MAX_WIDTH, DType, Integer, RelativePath, Sha256
from .kv_cache import KV_SCALE_BYTES, kv_width
from .manifest import (
    EARLY_EXIT,
    FORMAT_VERSION,
    TUNED_SCHEDULE,
    Manifest,
)
from .model_spec import MAX_END_TOKENS, ModelSpec
from .precision import (
    KERNEL_BLOCK_SIZES,
    FloatType,
    Kernels,
    KVType,
    PrecisionSpec,
    Quantization,
)
from .requests import PROMPT_PLACEHOLDER, ChatFile, PromptTemplate, SamplingDefaults

__all__ = [
    "DRAFT_ENTRY", "DRAFT_HEAD", "DRAFT_LAYER", "DRAFT_STATES", "EARLY_EXIT", "FORMAT_VERSION",
    "KERNEL_BLOCK_SIZES", "KV_SCALE_BYTES", "MAX_END_TOKENS", "MAX_LAYERS", "MAX_TOKENS",
    "MAX_WIDTH", "NUM_CANDIDATES", "NUM_JOINED", "PAST_OF", "PROMPT_PLACEHOLDER",
    "TRAINED_HEAD", "TUNED_SCHEDULE", "BuildSpec", "ChatFile", "DType", "DraftHead", "EngineKind",
    "EngineSpec", "FileRecord", "FloatType", "Integer", "KVBucket", "KVType", "Kernels",
    "Manifest", "ModelSpec", "PrecisionSpec", "PromptTemplate", "Quantization", "RelativePath",
    "SamplingDefaults", "Sha256", "TensorRole", "TensorSpec", "TrainedDraft",
    "json_digest", "kv_width",
]  # fmt: skip
