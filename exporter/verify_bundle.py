"""Verifies a whole bundle against its checkpoint, one engine's weights in memory at a time."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

import onnx

from ..engines.bundle import EngineBundle
from ..engines.errors import SkipDecError, VerificationError
from ..engines.manifest import EngineKind, EngineSpec, ModelSpec, PrecisionSpec
from ..engines.session import open_backend
from .checkpoint import open_checkpoint
from .dtypes import check_dtypes
from .verify_calls import ModuleCalls, SessionCalls
from .verify_engines import Tolerance, check_engine, engine_tolerance, graph_tensors, weight_problem
from .verify_reference import Reference, ReferenceBuilder
from .verify_report import (
    EngineCheck,
    Progress,
    Stage,
    TokenCheck,
    VerificationReport,
    VerificationRequest,
)
from .verify_tokens import (
    FloatArray,
    GreedyText,
    compare_tokens,
    greedy_texts,
    hugging_face_logits,
    random_prompts,
    streamed_logits,
    text_from_logits,
    token_tolerance,
)
from .weights import TensorReader, expected_tensors

OnProgress = Callable[[Progress], None]


def verify_bundle(request: VerificationRequest, on_progress: OnProgress) -> VerificationReport:
    """Hold every engine, then the greedy tokens, against the checkpoint; report what was found.

    Raises VerificationError if the bundle is not what was asked for (model, precision, dtypes),
    BundleError if it is damaged, and the checkpoint's own errors. An engine that computes
    something else is in the report's ``problems``, not an exception; tokens are then left out.
    """
    start = perf_counter()
    bundle = EngineBundle.open(request.directory, verify="full")
    checkpoint = open_checkpoint(request.config)
    _check_identity(bundle, checkpoint.model, request.precision)
    _check_graphs(bundle)
    verification = Verification(request, bundle, checkpoint.reader, on_progress)
    engines = verification.check_engines()
    broken = any(check.problems for check in engines)
    tokens = None if broken else verification.check_tokens()
    return VerificationReport(engines=engines, tokens=tokens, seconds=perf_counter() - start)


class Verification:
    """The checks of one bundle that is known to be of the model and precision asked for."""

    def __init__(
        self,
        request: VerificationRequest,
        bundle: EngineBundle,
        reader: TensorReader,
        on_progress: OnProgress,
    ) -> None:
        self._seed = request.config.seed
        self._atol = request.config.atol
        self._memory = min(request.config.verify_memory, available_memory())
        self._bundle = bundle
        self._model = bundle.manifest.model
        self._precision = bundle.manifest.precision
        self._reader = reader
        self._quantized = Reference(self._model, self._precision, reader)
        float_precision = PrecisionSpec(dtype=self._precision.dtype)
        self._float = Reference(self._model, float_precision, reader)
        self._backend = open_backend(bundle.manifest.target)
        self._on_progress = on_progress

    def check_engines(self) -> tuple[EngineCheck, ...]:
        """Every engine against its module; canonical ones, which are never quantised, too."""
        manifest = self._bundle.manifest
        jobs = [(spec.name, spec, self._quantized) for spec in manifest.all_engines]
        jobs += [(f"canonical {spec.name}", spec, self._float) for spec in manifest.canonical]
        checks = []
        for number, (label, spec, reference) in enumerate(jobs):
            self._report("engines", label, number, len(jobs))
            check = self._check_engine(spec, reference)
            checks.append(check.model_copy(update={"engine": label}))
        return tuple(checks)

    def _check_engine(self, spec: EngineSpec, reference: Reference) -> EngineCheck:
        stored = graph_tensors(self._bundle, spec)
        builder = ReferenceBuilder(reference, spec.kind, spec.layer_index)
        problems = [weight_problem(name, stored(name), array) for name, array in builder.tensors()]
        tolerance = engine_tolerance(reference.precision, spec.kind)
        if self._atol is not None:
            tolerance = Tolerance(self._atol, self._atol)
        return check_engine(
            spec,
            SessionCalls(self._backend.load(self._bundle, spec)),
            ModuleCalls(builder.module),
            self._model,
            tolerance,
            self._seed,
            tuple(problem for problem in problems if problem is not None),
        )

    def check_tokens(self) -> TokenCheck:
        """Greedy tokens at full depth against the model in the bundle's float type.

        The bundle generates if it fits in ``verify_memory``; else its engines read random tokens,
        one loaded at a time. Hugging Face's model is the reference if it fits; else our modules
        are, one loaded at a time.
        """
        generates = loaded_bytes(self._bundle) <= self._memory and self._model.max_seq_len > 1
        self._report("tokens", "the bundle", 0, 2)
        texts = greedy_texts(self._bundle, self._seed) if generates else self._streamed_texts()
        rows = [text.read for text in texts]
        self._report("tokens", "the reference", 1, 2)
        if fits := reference_bytes(self._model) <= self._memory:
            dtype = self._precision.dtype
            logits = hugging_face_logits(rows, self._model, dtype, self._reader)
        else:
            logits = self._streamed_reference(rows)
        return compare_tokens(
            texts,
            logits,
            "Hugging Face" if fits else "layer by layer",
            self._atol or token_tolerance(self._precision),
            required=self._precision.quantize == self._precision.head_quantize == "none",
        )

    def _streamed_texts(self) -> list[GreedyText]:
        engines = {(spec.kind, spec.layer_index): spec for spec in self._bundle.manifest.engines}

        def load(kind: EngineKind, layer_index: int | None) -> SessionCalls:
            return SessionCalls(self._backend.load(self._bundle, engines[kind, layer_index]))

        rows = random_prompts(self._model, self._seed)
        logits = streamed_logits(rows, self._model, self._precision.dtype, load)
        return [text_from_logits(row, each) for row, each in zip(rows, logits, strict=True)]

    def _streamed_reference(self, rows: list[tuple[int, ...]]) -> list[FloatArray]:
        def load(kind: EngineKind, layer_index: int | None) -> ModuleCalls:
            builder = ReferenceBuilder(self._float, kind, layer_index)
            for _ in builder.tensors():
                pass
            return ModuleCalls(builder.module)

        return streamed_logits(rows, self._model, "float32", load)

    def _report(self, stage: Stage, item: str, done: int, total: int) -> None:
        self._on_progress(Progress(stage=stage, item=item, done=done, total=total))


def loaded_bytes(bundle: EngineBundle) -> int:
    """Estimated memory of all engines loaded: weights as stored, float16 ones widened."""
    sizes = {record.path: record.size for record in bundle.manifest.files}
    stored = sum(sizes[path] for spec in bundle.manifest.engines for path in spec.weights)
    return stored * 2 if bundle.manifest.precision.dtype == "float16" else stored


def reference_bytes(model: ModelSpec) -> int:
    """Memory of the whole model in float32."""
    return 4 * sum(math.prod(shape) for shape in expected_tensors(model).values())


def available_memory() -> int:
    """Bytes that can be had without swapping (MemAvailable)."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("/proc/meminfo has no MemAvailable")


def _check_identity(bundle: EngineBundle, model: ModelSpec, precision: PrecisionSpec) -> None:
    """Raise VerificationError if the bundle is of another structure or precision than asked."""
    manifest = bundle.manifest
    free = {"name", "max_seq_len"}  # a checkpoint may be called otherwise, its use be limited
    built, asked = manifest.model.model_dump(exclude=free), model.model_dump(exclude=free)
    built |= manifest.precision.model_dump()
    asked |= precision.model_dump()
    if problems := [
        f"{field} is {built[field]!r} in the bundle; asked for: {asked[field]!r}"
        for field in asked
        if built[field] != asked[field]
    ]:
        raise VerificationError(str(bundle.path), *problems)


def _check_graphs(bundle: EngineBundle) -> None:
    """Raise VerificationError, all engines at once, if dtypes are not what was asked for."""
    manifest = bundle.manifest
    float_precision = PrecisionSpec(dtype=manifest.precision.dtype)
    asked = [(spec, manifest.precision) for spec in manifest.all_engines]
    asked += [(spec, float_precision) for spec in manifest.canonical]
    problems: list[str] = []
    for spec, precision in asked:
        graph = onnx.load(bundle.file(spec.graph), load_external_data=False).graph
        try:
            check_dtypes(graph, spec, manifest.model, precision)
        except SkipDecError as error:
            problems += [f"{error.subject}: {problem}" for problem in error.problems]
    if problems:
        raise VerificationError(str(bundle.path), *problems)
