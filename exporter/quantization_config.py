"""Options of exports and builds: the target of the engines and the precision of their weights."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from ..engines.checking import Option, ValidatedConfig
from ..engines.kernels.formats import KERNEL_BLOCKS
from ..engines.kernels.library import find_library
from ..engines.manifest import (
    KERNEL_BLOCK_SIZES,
    MAX_WIDTH,
    FloatType,
    Kernels,
    KVType,
    PrecisionSpec,
    Quantization,
)
from ..engines.targets import compiled_targets, exported_targets
from .tensorrt_config import TensorRtConfig

KernelChoice = Literal["auto", "skipdec", "onnxruntime"]

BLOCK_QUANTIZATIONS: tuple[Quantization, ...] = ("int8-block", "int4")
RANGED_QUANTIZATIONS: tuple[Quantization, ...] = ("int8", "fp8")
DEFAULT_TARGET = "onnxruntime"
DEFAULT_BLOCK_SIZE = 128
DEFAULT_INT8_BLOCK_SIZE = 64


class QuantizationConfig(ValidatedConfig):
    """The target of the engines and the quantisation of their weights.

    >>> QuantizationConfig(quantize="int8").precision_for("float16").head_quantize
    'int8'
    """

    target: Annotated[str, Option()] = Field(
        default=DEFAULT_TARGET,
        description=f"platform that runs the engines: {', '.join(exported_targets())}",
    )
    kernels: Annotated[KernelChoice, Option()] = Field(
        default="auto",
        description="kernels of target onnxruntime: skipdec's own, for CPUs, or onnxruntime's "
        "(skipdec's if compiled)",
    )
    quantize: Annotated[Quantization, Option()] = Field(
        default="none", description="weights: int8 per channel, fp8 per tensor, others in blocks"
    )
    head_quantize: Quantization | None = Field(
        default=None, description="the head's weights (as --quantize)"
    )
    block_size: Annotated[int | None, Option()] = Field(
        default=None, description="weights per scale, int4 (128) and int8-block (64)"
    )
    accuracy_level: Literal[0, 4] | None = Field(
        default=None, description="products of blocks: 0 exact, 4 in int8 (4)"
    )
    ranges: Annotated[Path | None, Option(metavar="FILE")] = Field(
        default=None,
        description="from skipdec calibrate: for int8 products, fp8, int8 factors (any target)",
    )
    tensorrt: Annotated[TensorRtConfig | None, Option()] = Field(
        default=None, description="targets of TensorRT only; None: its defaults"
    )
    output: Annotated[Path | None, Option("-o", metavar="DIR")] = Field(
        default=None, description="(MODEL[-fp16][-int8][-TARGET].skipdec)"
    )
    force: Annotated[bool, Option()] = Field(
        default=False, description="replace an existing bundle"
    )
    resume: bool = Field(default=True, description="reuse engines built by an interrupted run")
    jobs: int = Field(default=1, ge=1, description="engines built at once; memory use grows, too")

    @property
    def quantizations(self) -> tuple[Quantization, Quantization]:
        """Return the quantisations of the layers and of the head."""
        head = self.quantize if self.head_quantize is None else self.head_quantize
        return self.quantize, head

    @property
    def is_compiled(self) -> bool:
        """Return True if the target's engines are TensorRT plans."""
        return self.target in compiled_targets()

    @property
    def own_kernels(self) -> Kernels | None:
        """Return the kernels whose operators the graphs use; None for the target's own."""
        if self.target != DEFAULT_TARGET or self.kernels == "onnxruntime":
            return None
        return "skipdec" if self.kernels == "skipdec" or find_library() is not None else None

    @property
    def tensorrt_options(self) -> TensorRtConfig:
        """Return ``tensorrt`` or its defaults."""
        return self.tensorrt or TensorRtConfig()

    def precision_for(
        self,
        dtype: FloatType,
        activation_ranges: str | None = None,
        kv_dtype: KVType | None = None,
    ) -> PrecisionSpec:
        """Return the requested number formats, with every default resolved.

        ``activation_ranges`` is the digest of the ranges' content, None without ranges.
        """
        used = self.quantizations
        in_blocks = not set(used).isdisjoint(BLOCK_QUANTIZATIONS)
        accuracy_level = 4 if self.accuracy_level is None else self.accuracy_level
        block_size = self.block_size or _default_block_size(used)
        return PrecisionSpec(
            dtype=dtype,
            quantize=used[0],
            head_quantize=used[1],
            block_size=block_size if in_blocks else None,
            accuracy_level=accuracy_level if in_blocks and not self.is_compiled else None,
            activation_ranges=activation_ranges,
            kv_dtype=None if kv_dtype == dtype else kv_dtype,
        )

    def _problems(self) -> Iterator[str]:
        used = self.quantizations
        if self.block_size is not None:
            if set(used).isdisjoint(BLOCK_QUANTIZATIONS):
                yield (
                    f"`block_size` is {self.block_size} but nothing is quantised in blocks; "
                    "leave it out, or set `quantize` to int4 or int8-block"
                )
            yield from block_size_problems(self.block_size)
        yield from self._tensorrt_problems() if self.is_compiled else self._other_problems()

    def _tensorrt_problems(self) -> Iterator[str]:
        """Yield the options that contradict a TensorRT target."""
        if self.kernels != "auto":
            yield (
                f"`kernels` is {self.kernels}, for CPUs; leave it out for target {self.target}, or "
                f"set `target` to {DEFAULT_TARGET}"
            )
        if self.accuracy_level is not None:
            yield (
                f"`accuracy_level` is {self.accuracy_level}, an option of ONNX Runtime's integer "
                f"products; leave it out for target {self.target}"
            )
        tensorrt = self.tensorrt_options
        if tensorrt.timing_cache is not None and self.target == "tensorrt-rtx":
            yield (
                f"`tensorrt.timing_cache` is {tensorrt.timing_cache}, but TensorRT-RTX times no "
                "kernels; leave it out for target tensorrt-rtx"
            )
        if "fp8" in self.quantizations and self.ranges is None:
            yield "`quantize` is fp8, which needs the ranges of activations; set `ranges`"
        if self.ranges is not None and set(self.quantizations).isdisjoint(RANGED_QUANTIZATIONS):
            yield (
                f"`ranges` is {self.ranges} but no activation is quantised; "
                "leave it out, or set `quantize` to int8 or fp8"
            )

    def _other_problems(self) -> Iterator[str]:
        """Yield the options that contradict a target other than TensorRT."""
        used = self.quantizations
        if self.kernels == "skipdec" and self.target != DEFAULT_TARGET:
            yield f"`kernels` is skipdec, which target {self.target} does not support; leave it out"
        elif self.kernels == "skipdec" and not set(used).isdisjoint(BLOCK_QUANTIZATIONS):
            yield from self._block_problems(used)
        if self.tensorrt is not None:
            given = [f"`tensorrt.{name}`" for name in sorted(self.tensorrt.model_fields_set)]
            yield (
                f"{', '.join(given) or '`tensorrt`'} belongs to the targets "
                f"{' and '.join(compiled_targets())}; "
                f"leave it out for target {self.target}"
            )
        if "fp8" in self.quantizations:
            yield (
                f"`quantize` is fp8, for which target {self.target} has no kernels; "
                f"allowed with the targets {' and '.join(compiled_targets())}"
            )

    def _block_problems(self, used: tuple[Quantization, ...]) -> Iterator[str]:
        """Yield the options that skipdec's kernels of block products don't support."""
        size = self.block_size or _default_block_size(used)
        if size not in KERNEL_BLOCK_SIZES:
            yield (
                f"`block_size` is {size}, for which the kernels skipdec have no product; allowed: "
                f"{KERNEL_BLOCKS}, or set `kernels` to onnxruntime"
            )
        if self.accuracy_level == 0:
            yield (
                "`accuracy_level` is 0, for which the kernels skipdec have no product of blocks; "
                "leave it out, or set `kernels` to onnxruntime"
            )


def draft_layer_precision(precision: PrecisionSpec, form: str) -> PrecisionSpec:
    """Return the number formats of a draft layer in a bundle of ``precision`` and ``form``.

    With skipdec's kernels, float weights become int8 in blocks. Drafts then read at most half the
    bytes, hold as often, and texts do not depend on them.
    """
    if form != "skipdec" or precision.quantize != "none":
        return precision
    return PrecisionSpec(
        dtype=precision.dtype,
        quantize="int8-block",
        head_quantize="int8-block",
        block_size=DEFAULT_INT8_BLOCK_SIZE,
        accuracy_level=4,
        kv_dtype=precision.kv_dtype,
    )


def _default_block_size(used: tuple[Quantization, ...]) -> int:
    """Return 64 for int8 in blocks, where activations are scaled per block, too; else 128."""
    return DEFAULT_INT8_BLOCK_SIZE if "int8-block" in used else DEFAULT_BLOCK_SIZE


def block_size_problems(size: int) -> Iterator[str]:
    """Yield the problem with a ``block_size``, if any."""
    if not 16 <= size <= MAX_WIDTH or size & (size - 1):
        yield f"`block_size` is {size}; allowed: 16, 32, 64, 128, 256, ..."
