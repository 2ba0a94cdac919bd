"""Resolves and checks all options with which TensorRT compiles engines. Example:

opt-1.3b (max_seq_len 2048), max_batch_size 64, max_prompt_len 256
kv_buckets 256, 1024, 2048; max_prefill_rows 2048 // 256 = 8
decode profile: B 1..64, S 1; prefill profile: B 1..8, S 1..256
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

from ...engines.checking import Problems
from ...engines.errors import EnvironmentMismatchError, UsageError
from ...engines.host.gpus import survey_gpus
from ...engines.manifest import (
    BuildSpec,
    EngineKind,
    FloatType,
    ModelSpec,
    PrecisionSpec,
    TensorSpec,
)
from ...engines.trt.build import BuilderFacts, BuildOptions, Profile, Shape, check_options
from ...engines.trt.library import TensorRtTarget
from ..graphs.tensorrt import check_model
from ..quantization.ranges import ActivationRanges, read_ranges
from ..quantization_config import QuantizationConfig

_SMALLEST_BUCKET = 256  # positions
_BUCKET_STEP = 4
_PREFILL_TOKENS = 2048  # B * S of a prefill call unless a single row is longer
_SCORED_ROWS = 64  # logits rows that the head returns at once, unless prefill has more rows


@dataclass(frozen=True)
class TensorRtOptions:
    """Resolved options for compiling canonical engines; ``build`` goes into the manifest."""

    target: TensorRtTarget
    precision: PrecisionSpec
    ranges: ActivationRanges | None
    build: BuildSpec
    options: BuildOptions

    def capacities(self, kind: EngineKind) -> tuple[int, ...]:
        """Return the KV capacities that an engine of ``kind`` is compiled for; () without cache."""
        return self.build.kv_buckets if kind is EngineKind.LAYER else ()

    def profiles(
        self, kind: EngineKind, inputs: tuple[TensorSpec, ...], capacity: int | None
    ) -> tuple[Profile, ...]:
        """Return the optimisation profiles of one plan: decode and prefill; one for candidates.

        The optimum of every dimension is its maximum, so that kernels are chosen for full batches
        and whole prompts.
        """
        build = self.build
        rows, prefill_rows = build.max_batch_size, build.max_prefill_rows
        if kind is EngineKind.CANDIDATES:
            return (_profile(inputs, {"R": max(rows, prefill_rows)}),)
        num_tokens = min(build.max_prompt_len, capacity or build.max_prompt_len)
        fixed = {} if capacity is None else {"T": capacity}
        decode = {"B": rows, "S": 1, "R": rows}
        prefill = {"B": prefill_rows, "S": num_tokens, "R": max(_SCORED_ROWS, prefill_rows)}
        return tuple(_profile(inputs, sizes, fixed) for sizes in (decode, prefill))


def _profile(
    inputs: tuple[TensorSpec, ...], largest: dict[str, int], fixed: dict[str, int] | None = None
) -> Profile:
    """Return each input's minimum, optimum and maximum; symbols range from 1 to ``largest``."""

    def shape(spec: TensorSpec, sizes: dict[str, int]) -> Shape:
        return tuple(sizes[size] if isinstance(size, str) else size for size in spec.shape)

    smallest = dict.fromkeys(largest, 1) | (fixed or {})
    maximum = largest | (fixed or {})
    return {
        spec.name: (shape(spec, smallest), shape(spec, maximum), shape(spec, maximum))
        for spec in inputs
    }


def resolve_options(
    config: QuantizationConfig, dtype: FloatType, model: ModelSpec
) -> TensorRtOptions:
    """Resolve the options in ``config`` for engines of ``model`` and this machine.

    Raises one error with every problem: sizes that do not fit the model (UsageError), a model for
    which TensorRT has no kernels, ranges that can't be read or do not fit, a missing library
    (MissingExtraError), and a machine that can't build with these options
    (EnvironmentMismatchError, with alternatives).
    """
    tensorrt = config.tensorrt_options
    max_prompt_len = tensorrt.max_prompt_len or model.max_seq_len
    kv_buckets = tensorrt.kv_buckets or default_kv_buckets(model.max_seq_len)
    options = BuildOptions(
        target=cast(TensorRtTarget, config.target),
        compute_capability=tensorrt.gpu_arch,
        optimization_level=tensorrt.optimization_level,
        workspace=tensorrt.workspace,
        hardware_compatible=tensorrt.hardware_compatible,
        version_compatible=tensorrt.version_compatible,
        timing_cache=tensorrt.timing_cache,
    )
    problems = Problems(f"target {config.target}")
    problems.attempt(_check_sizes, max_prompt_len, kv_buckets, model)
    facts = problems.attempt(_check_machine, options)
    ranges = None if config.ranges is None else problems.attempt(read_ranges, config.ranges)
    precision = config.precision_for(dtype, None if ranges is None else ranges.digest)
    if ranges is not None:
        problems.attempt(ranges.check, model, precision, str(config.ranges))
    gpu = tensorrt.gpu_arch or (None if facts is None else facts.compute_capability)
    problems.attempt(check_model, model, precision, gpu)
    if facts is None or problems.errors:
        raise problems.error()
    assert gpu is not None
    build = BuildSpec(
        version=facts.version,
        compute_capability=gpu,
        driver=None if facts.gpu is None else facts.driver,
        max_batch_size=tensorrt.max_batch_size,
        max_prompt_len=max_prompt_len,
        max_prefill_rows=max(1, min(tensorrt.max_batch_size, _PREFILL_TOKENS // max_prompt_len)),
        kv_buckets=kv_buckets,
        optimization_level=tensorrt.optimization_level,
        workspace=tensorrt.workspace,
        hardware_compatible=tensorrt.hardware_compatible,
        version_compatible=tensorrt.version_compatible,
    )
    return TensorRtOptions(options.target, precision, ranges, build, options)


def default_kv_buckets(max_seq_len: int) -> tuple[int, ...]:
    """Return 256, 1024, 4096 ... below ``max_seq_len``, then ``max_seq_len``.

    Each bucket needs its own plan, so there are few. Attention reads at most four times the
    positions that a request needs.

    >>> default_kv_buckets(2048), default_kv_buckets(100)
    ((256, 1024, 2048), (100,))
    """
    buckets = []
    capacity = _SMALLEST_BUCKET
    while capacity < max_seq_len:
        buckets.append(capacity)
        capacity *= _BUCKET_STEP
    return (*buckets, max_seq_len)


def _check_sizes(max_prompt_len: int, kv_buckets: tuple[int, ...], model: ModelSpec) -> None:
    most, problems = model.max_seq_len, []
    if max_prompt_len > most:
        problems.append(f"max_prompt_len is {max_prompt_len}; allowed: at most max_seq_len, {most}")
    if kv_buckets[-1] < most:
        problems.append(
            f"the largest of kv_buckets is {kv_buckets[-1]}, too small for max_seq_len {most}; "
            f"add {most}, or lower max_seq_len"
        )
    if len(kv_buckets) > 1 and kv_buckets[-2] >= most:
        problems.append(
            f"kv_buckets has {kv_buckets[-2]} and {kv_buckets[-1]}, which both hold max_seq_len "
            f"{most}: only the smaller would be used; leave out the larger"
        )
    if problems:
        raise UsageError(model.name, *problems)


def _check_machine(options: BuildOptions) -> BuilderFacts:
    """Call ``check_options``; without a GPU, add alternatives to its error."""
    try:
        return check_options(options)
    except EnvironmentMismatchError as error:
        if survey_gpus().gpus or (options.target == "tensorrt-rtx" and options.compute_capability):
            raise
        raise type(error)(error.subject, *error.problems, *_without_gpu(options)) from error


def _without_gpu(options: BuildOptions) -> Iterator[str]:
    if options.target == "tensorrt":
        yield (
            "this machine has no GPU, which this target needs; plans for another target can be "
            "built here: --target tensorrt-rtx --gpu-arch 8.9"
        )
    else:
        yield "this machine has no GPU; --gpu-arch 8.9, for example, builds for one elsewhere"
    yield (
        "or export here with --keep-canonical and build on the machine with the GPU, which needs "
        f"no torch: skipdec build BUNDLE --target {options.target}"
    )
