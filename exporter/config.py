"""Configurations of exports and builds: frozen values with a JSON round trip."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator
from typing_extensions import override

from ..engines.checking import MemorySize, Option, ValidatedConfig
from ..engines.manifest import FloatType, Kernels, KVType, PrecisionSpec
from ..engines.targets import compiled_targets
from .quantization_config import DEFAULT_TARGET, QuantizationConfig

LoadFormat = Literal["auto", "safetensors", "bin", "dummy"]

CANONICAL = "canonical"
DRAFT_HEAD_MULTIPLE = 64  # columns: whole blocks of every packing
GIB = 1 << 30


class CheckpointSource(ValidatedConfig):
    """A checkpoint and the way to open it; ``seed`` is that of dummy weights.

    Raises UsageError, with every problem at once, like all configurations.

    >>> CheckpointSource(model="opt-66b", load_format="dummy").seed
    0
    """

    model: Annotated[str, Option(metavar="MODEL", is_argument=True)] = Field(
        min_length=1,
        description="opt-125m, …, opt-66b, SmolLM2-135M or another short name, a hub id, or a "
        "directory with config.json",
    )
    load_format: Annotated[LoadFormat, Option()] = Field(
        default="auto", description="dummy: random weights, no download"
    )
    revision: str | None = Field(default=None, description="branch, tag or commit on the hub")
    local_files_only: bool = Field(default=False, description="use the cache only, no network")
    seed: int = Field(
        default=0, ge=0, lt=1 << 63, description="seed of dummy weights and of verification"
    )
    early_exit: bool = Field(
        default=False,
        description="trained to exit after any layer, as LayerSkip's are, known by their name",
    )
    max_seq_len: Annotated[int | None, Option()] = Field(
        default=None, ge=1, description="prompt + completion (the model's, at most 8192)"
    )


class ExportConfig(QuantizationConfig, CheckpointSource):
    """Everything that determines what `export` reads, builds, checks and writes.

    Raises UsageError, with every problem at once, for an unknown field or a value that is not
    allowed. ``ExportConfig.from_json(config.to_json()) == config`` holds for every config.

    >>> ExportConfig(model="opt-1.3b", dtype="float16").precision().dtype
    'float16'
    """

    dtype: Annotated[FloatType, Option()] = Field(
        default="float32",
        description="type of float weights, KV cache, activations (skipdec's kernels: float32)",
    )
    fp16: Annotated[bool, Option()] = Field(default=False, description="--dtype float16")
    kv_dtype: Annotated[KVType | None, Option()] = Field(
        default=None,
        description="type of the KV cache, with skipdec's kernels only (--dtype; float16 with "
        "--quantize)",
    )
    schedule: Annotated[str | None, Option(metavar="SPEC")] = Field(
        default=None,
        description="full, 2x:horizon=64, linear:max=16,min=8,… or a file (the checkpoint's, or "
        "full)",
    )
    keep_canonical: Annotated[bool, Option()] = Field(
        default=False, description="keep the standard ONNX graphs too"
    )
    draft: Annotated[str | None, Option(metavar="TEXT")] = Field(
        default=None,
        description="what --draft auto of the other commands runs, e.g. own+ends:3 (own)",
    )
    draft_layer: Annotated[Path | None, Option(metavar="DIR")] = Field(
        default=None,
        description="draft layer from skipdec tune --draft-layer, for target onnxruntime",
    )
    ngrams: Annotated[Path | None, Option(metavar="FILE")] = Field(
        default=None,
        description="n-grams from skipdec ngrams, from which drafts own start (none)",
    )
    draft_head: int | None = Field(
        default=None,
        ge=0,
        description="head of drafts of the model's layers: the first N tokens, on the head's own "
        "weights (none)",
    )
    verify: Annotated[bool, Option()] = Field(
        default=True, description="compare the bundle with the checkpoint"
    )
    verify_memory: MemorySize = Field(
        default=8 * GIB, description="limit for a bundle whose engines are loaded all at once"
    )
    atol: float | None = Field(
        default=None, gt=0, description="tolerance of verification (by precision)"
    )
    max_divergence: float | None = Field(
        default=None,
        gt=0,
        description="nats per token that quantisation may cost in verification (by precision)",
    )

    @property
    def source(self) -> CheckpointSource:
        """Return the fields of the checkpoint alone."""
        return CheckpointSource(
            **{name: getattr(self, name) for name in CheckpointSource.model_fields}
        )

    @model_validator(mode="before")
    @classmethod
    def _read_fp16_as_the_type(cls, values: dict[str, Any]) -> dict[str, Any]:
        if values.get("fp16") is True and values.get("dtype", "float16") == "float16":
            return values | {"fp16": False, "dtype": "float16"}
        return values

    def _problems(self) -> Iterator[str]:
        yield from super()._problems()
        if self.fp16:
            yield f"`fp16` contradicts `dtype`, which is {self.dtype}; use one of them"
        if self.own_kernels is None:
            yield from self._problems_without_own_kernels()
        for name in ("draft", "draft_layer", "ngrams") if self.is_compiled else ():
            if (value := getattr(self, name)) is not None:
                yield (
                    f"`{name}` is {value}, but drafts run on CPUs only; leave it out for target "
                    f"{self.target}"
                )
        if self.draft_head and self.draft_head % DRAFT_HEAD_MULTIPLE:
            yield (
                f"`draft_head` is {self.draft_head}; allowed: multiples of {DRAFT_HEAD_MULTIPLE}, "
                "the columns of which lie together in the head's weights, or 0"
            )

    def _problems_without_own_kernels(self) -> Iterator[str]:
        """Yield the options that need skipdec's kernels on a CPU."""
        if self.draft_head:
            yield (
                f"`draft_head` is {self.draft_head}, but only the kernels skipdec read a part of "
                "the head's weights in place; leave it out"
            )
        compile_them = (
            "the kernels skipdec, which were not compiled with this installation"
            if self.kernels == "auto" and self.target == DEFAULT_TARGET
            else f"target {DEFAULT_TARGET} and the kernels skipdec"
        )
        if self.dtype == "bfloat16" and not self.is_compiled:
            yield (
                "`dtype` is bfloat16, for which ONNX Runtime has no matrix kernels on CPUs; "
                f"allowed with {compile_them}, and with the targets "
                f"{' and '.join(compiled_targets())}"
            )
        if self.kv_dtype is not None:
            yield (
                f"`kv_dtype` is {self.kv_dtype}, but caches have the type of the activations "
                f"except with {compile_them}; leave it out"
            )

    def _other_problems(self) -> Iterator[str]:
        yield from super()._other_problems()
        if self.ranges is not None and not ("int8" in self.quantizations or self.keep_canonical):
            yield (
                f"`ranges` is {self.ranges} but no activation is quantised; leave it out, set "
                "`quantize` to int8, or `keep_canonical` for a build that quantises"
            )

    def precision(self) -> PrecisionSpec:
        """Return ``precision_for`` the requested ``dtype``, with the default type of the KV cache.

        With quantised weights, a 16-bit cache has no measurable cost in quality, and a step of many
        rows reads half the bytes from it.
        """
        kv_dtype = self.kv_dtype
        if kv_dtype is None and self.own_kernels is not None and self.dtype == "float32":
            kv_dtype = None if self.quantize == "none" else "float16"
        return self.precision_for(self.dtype, kv_dtype=kv_dtype)


class BuildConfig(QuantizationConfig):
    """Everything that determines what `build_bundle` reads and writes.

    Raises UsageError, with every problem at once, for an unknown field or a value that is not
    allowed. ``BuildConfig.from_json(config.to_json()) == config`` holds for every config.
    """

    bundle: Annotated[Path, Option(metavar="BUNDLE", is_argument=True)] = Field(
        description="only read; exported with --keep-canonical"
    )
    target: Annotated[Literal["onnxruntime", "tensorrt", "tensorrt-rtx"], Option()] = Field(
        description="platform that runs the engines"
    )

    @property
    @override
    def own_kernels(self) -> Kernels | None:
        """Return None, because canonical graphs are lowered to the target's own operators."""
        return None

    def _other_problems(self) -> Iterator[str]:
        yield from super()._other_problems()
        if self.kernels == "skipdec":
            yield "`kernels` is skipdec, which only an export supports; allowed: onnxruntime"
        if self.ranges is not None:
            yield (
                f"`ranges` is {self.ranges}, which an export for target {self.target} reads: the "
                "canonical weights have its factors already; leave it out"
            )
