"""What an export or a build is asked to do: frozen values with a JSON round trip."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from pydantic import Field

from ..engines.checking import ValidatedConfig
from ..engines.host.processor import int8_weight_bits
from ..engines.manifest import FloatType, PrecisionSpec, Quantization

LoadFormat = Literal["auto", "safetensors", "bin", "dummy"]

BLOCK_QUANTIZATIONS: tuple[Quantization, ...] = ("int8-block", "int4")
RANGED_QUANTIZATIONS: tuple[Quantization, ...] = ("int8", "fp8")
TENSORRT_TARGETS = ("tensorrt", "tensorrt-rtx")
EXPORT_TARGETS = ("onnxruntime", *TENSORRT_TARGETS)
DEFAULT_BLOCK_SIZE = 128
GIB = 1 << 30


class TensorRtConfig(ValidatedConfig):
    """The options of the targets ``tensorrt`` and ``tensorrt-rtx``.

    Sizes are limits of the compiled engines: what exceeds them needs another build. Raises
    UsageError, with every problem at once, as all configurations do.
    """

    max_batch_size: int = Field(default=8, ge=1, description="rows of a decode step")
    max_prompt_len: int | None = Field(
        default=None, ge=1, description="tokens a row of a prefill call; None: max_seq_len"
    )
    kv_buckets: tuple[int, ...] | None = Field(
        default=None,
        min_length=1,
        description="KV capacities, ascending; None: 256, 1024, 4096 ... and max_seq_len",
    )
    gpu_arch: str | None = Field(
        default=None, description="compute capability, e.g. 8.9; None: this machine's GPU"
    )
    timing_cache: Path | None = Field(
        default=None, description="kernel timings, read and added to; target tensorrt only"
    )
    optimization_level: int = Field(default=3, ge=0, le=5)
    workspace: int | None = Field(default=None, ge=0, description="bytes of scratch allowed")
    hardware_compatible: bool = False
    version_compatible: bool = False

    def _problems(self) -> Iterator[str]:
        buckets = self.kv_buckets or ()
        if any(capacity < 1 for capacity in buckets):
            yield f"kv_buckets is {_listed(buckets)}; allowed: numbers of at least 1"
        if sorted(set(buckets)) != list(buckets):
            yield (
                f"kv_buckets is {_listed(buckets)}; give each capacity once and in ascending "
                f"order: {_listed(sorted(set(buckets)))}"
            )


def _listed(numbers: tuple[int, ...] | list[int]) -> str:
    return ",".join(map(str, numbers))


class QuantizationConfig(ValidatedConfig):
    """For which target engines are built, and what becomes of their weights.

    >>> QuantizationConfig(quantize="int8").precision_for("float16").head_quantize
    'int8'
    """

    target: str = "onnxruntime"
    quantize: Quantization = "none"
    head_quantize: Quantization | None = Field(default=None, description="None: as quantize")
    block_size: int | None = Field(default=None, description="int4 and int8-block only")
    accuracy_level: Literal[0, 4] | None = Field(
        default=None, description="of MatMulNBits: 0 exact, 4 int8; None: 4"
    )
    int8_weight_bits: Literal[7, 8] | None = Field(
        default=None, description="int8 only; None: 8, or 7 where this CPU's products saturate"
    )
    ranges: Path | None = Field(
        default=None, description="of activations: int8 and fp8 of TensorRT; factors: int8 anywhere"
    )
    tensorrt: TensorRtConfig | None = Field(
        default=None, description="targets of TensorRT only; None: its defaults"
    )

    @property
    def quantizations(self) -> tuple[Quantization, Quantization]:
        """Of the layers and of the head."""
        head = self.quantize if self.head_quantize is None else self.head_quantize
        return self.quantize, head

    @property
    def is_compiled(self) -> bool:
        """Whether the target's engines are TensorRT's plans."""
        return self.target in TENSORRT_TARGETS

    @property
    def tensorrt_options(self) -> TensorRtConfig:
        """``tensorrt``, or its defaults."""
        return self.tensorrt or TensorRtConfig()

    def precision_for(
        self, dtype: FloatType, activation_ranges: str | None = None
    ) -> PrecisionSpec:
        """The number formats asked for, with every default resolved for this machine.

        ``activation_ranges`` is the digest of the ranges' content, None without ranges.
        """
        used = self.quantizations
        in_blocks = not set(used).isdisjoint(BLOCK_QUANTIZATIONS)
        accuracy_level = 4 if self.accuracy_level is None else self.accuracy_level
        bits = 8 if self.is_compiled else self.int8_weight_bits or int8_weight_bits()
        return PrecisionSpec(
            dtype=dtype,
            quantize=used[0],
            head_quantize=used[1],
            block_size=(self.block_size or DEFAULT_BLOCK_SIZE) if in_blocks else None,
            accuracy_level=accuracy_level if in_blocks and not self.is_compiled else None,
            int8_weight_bits=bits if "int8" in used else None,
            activation_ranges=activation_ranges,
        )

    def _problems(self) -> Iterator[str]:
        used = self.quantizations
        if self.block_size is not None:
            if set(used).isdisjoint(BLOCK_QUANTIZATIONS):
                yield (
                    f"block_size is {self.block_size} but nothing is quantised in blocks; "
                    "leave it out, or set quantize to int4 or int8-block"
                )
            if self.block_size < 16 or self.block_size & (self.block_size - 1):
                yield f"block_size is {self.block_size}; allowed: 16, 32, 64, 128, 256, ..."
        if self.int8_weight_bits is not None and "int8" not in used:
            yield (
                f"int8_weight_bits is {self.int8_weight_bits} but nothing is quantised to int8; "
                "leave it out, or set quantize to int8"
            )
        yield from self._tensorrt_problems() if self.is_compiled else self._other_problems()

    def _tensorrt_problems(self) -> Iterator[str]:
        """What does not go with TensorRT."""
        for field in ("accuracy_level", "int8_weight_bits"):
            if (value := getattr(self, field)) is not None:
                yield (
                    f"{field} is {value}, an option of ONNX Runtime's integer products; "
                    f"leave it out for target {self.target}"
                )
        tensorrt = self.tensorrt_options
        if tensorrt.timing_cache is not None and self.target == "tensorrt-rtx":
            yield (
                f"tensorrt.timing_cache is {tensorrt.timing_cache}, but TensorRT-RTX times no "
                "kernels; leave it out for target tensorrt-rtx"
            )
        if "fp8" in self.quantizations and self.ranges is None:
            yield "quantize is fp8, which needs the ranges of activations; give ranges"
        if self.ranges is not None and set(self.quantizations).isdisjoint(RANGED_QUANTIZATIONS):
            yield (
                f"ranges is {self.ranges} but no activation is quantised; "
                "leave it out, or set quantize to int8 or fp8"
            )

    def _other_problems(self) -> Iterator[str]:
        """What goes with TensorRT only."""
        if self.tensorrt is not None:
            given = ", ".join(sorted(self.tensorrt.model_fields_set)) or "given"
            yield (
                f"tensorrt ({given}) belongs to the targets {' and '.join(TENSORRT_TARGETS)}; "
                f"leave it out for target {self.target}"
            )
        if "fp8" in self.quantizations:
            yield (
                f"quantize is fp8, for which target {self.target} has no kernels; "
                f"allowed with the targets {' and '.join(TENSORRT_TARGETS)}"
            )


class ExportConfig(QuantizationConfig):
    """All that decides what `export` reads, builds, checks and writes.

    Raises UsageError, with every problem at once, for an unknown field or a value that is not
    allowed. ``ExportConfig.from_json(config.to_json()) == config`` holds for every config.

    >>> ExportConfig(model="opt-1.3b", dtype="float16").precision().dtype
    'float16'
    """

    model: str = Field(min_length=1, description="opt-125m ... opt-66b, a hub id or a directory")
    output: Path | None = Field(
        default=None, description="None: named after the model, see output_path"
    )
    load_format: LoadFormat = "auto"
    revision: str | None = Field(default=None, description="branch, tag or commit on the hub")
    local_files_only: bool = False
    dtype: FloatType = "float32"
    max_seq_len: int | None = Field(default=None, ge=1, description="None: the model's positions")
    schedule: str | None = Field(default=None, description="None: the checkpoint's, else full")
    keep_canonical: bool = False
    force: bool = False
    resume: bool = True
    verify: bool = True
    verify_memory: int = Field(default=8 * GIB, ge=0, description="bytes for the whole reference")
    atol: float | None = Field(default=None, gt=0, description="None: verification's default")
    jobs: int = Field(default=1, ge=1, description="engines built at once; memory grows alike")
    seed: int = Field(default=0, ge=0, lt=1 << 63, description="of dummy weights and test prompts")

    def _problems(self) -> Iterator[str]:
        yield from super()._problems()
        if self.dtype == "bfloat16" and not self.is_compiled:
            yield (
                f"dtype is bfloat16, for which target {self.target} has no matrix kernels; "
                f"allowed with the targets {' and '.join(TENSORRT_TARGETS)}"
            )

    def _other_problems(self) -> Iterator[str]:
        yield from super()._other_problems()
        if self.ranges is not None and not ("int8" in self.quantizations or self.keep_canonical):
            yield (
                f"ranges is {self.ranges} but no activation is quantised; leave it out, set "
                "quantize to int8, or keep_canonical for a build that quantises"
            )

    def precision(self, activation_ranges: str | None = None) -> PrecisionSpec:
        """``precision_for`` the ``dtype`` asked for."""
        return self.precision_for(self.dtype, activation_ranges)


class BuildConfig(QuantizationConfig):
    """All that decides what `build_bundle` reads and writes.

    Raises UsageError, with every problem at once, for an unknown field or a value that is not
    allowed. ``BuildConfig.from_json(config.to_json()) == config`` holds for every config.
    """

    bundle: Path = Field(description="exported with --keep-canonical; it is only read")
    output: Path | None = Field(
        default=None, description="None: named after the model, see bundle_build.output_path"
    )
    force: bool = False
    resume: bool = True
    jobs: int = Field(default=1, ge=1, description="engines built at once; memory grows alike")

    def _problems(self) -> Iterator[str]:
        if self.is_compiled:
            yield from super()._problems()
        else:
            yield (
                f"target is {self.target!r}; allowed: {', '.join(TENSORRT_TARGETS)} (engines for "
                "others are made by exporting the model)"
            )
