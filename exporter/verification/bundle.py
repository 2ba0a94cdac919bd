"""Verification of a whole bundle against its checkpoint, loading one engine at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from functools import partial
from time import perf_counter, process_time
from typing import Self

import onnx

from ...engines.backends.session import EngineBackend, open_backend
from ...engines.bundle import EngineBundle
from ...engines.errors import UsageError
from ...engines.host.events import Events
from ...engines.host.processor import available_memory
from ...engines.manifest import EngineKind, EngineSpec, KVBucket, PrecisionSpec
from ...engines.memory import Array
from ...engines.targets import target_of
from ...runtime.tokens.tokenizer import Tokenizer
from ..architecture.weights import TensorReader
from ..checkpoint.checkpoint import open_checkpoint
from ..checkpoint.draft_layer import TrainedDraftLayer
from ..quantization.migration import Migration
from ..quantization.ranges import read_ranges
from ..quantization_config import DEFAULT_TARGET, draft_layer_precision
from .answers import AnswerCheck
from .calls import ModuleCalls, SessionCalls
from .drafts import check_draft_head, open_draft_layer
from .engines import check_engine, graph_tensors, weight_problem
from .hugging_face import hugging_face_logits
from .identity import (
    check_identity,
    check_migration,
    checked_graphs,
    loaded_bytes,
    reference_bytes,
)
from .plans import plan_backend, plan_calls, plans
from .questions import affordable, asked_questions, compare_answers
from .reference import Reference, ReferenceBuilder
from .report import EngineCheck, TokenCheck, VerificationReport, VerificationRequest
from .tokens import (
    GreedyText,
    compare_tokens,
    greedy_texts,
    random_prompts,
    streamed_logits,
    text_from_logits,
    token_tolerance,
)
from .tolerance import (
    DivergenceBound,
    Tolerance,
    divergence_bound,
    engine_tolerance,
    plan_tolerance,
    remedies,
)

_Job = tuple[str, Callable[[], EngineCheck]]
_ANSWER_SECONDS = 60.0
_UNCOMPARED_DRAFT = (
    "the draft layer was not compared; pass the directory that it was exported from as "
    "--draft-layer"
)


def verify_bundle(request: VerificationRequest, events: Events) -> VerificationReport:
    """Compare every engine, then the greedy tokens, with the checkpoint; return a report.

    Raises VerificationError if the bundle differs from the request (model, precision, dtypes),
    BundleError if it is damaged, and the checkpoint's own errors. An engine with wrong results is
    listed in the report's ``problems`` instead, and tokens are then skipped.
    """
    start = perf_counter()
    bundle = EngineBundle.open(request.directory, verify="full")
    checkpoint = open_checkpoint(request.source)
    built = bundle.manifest
    if request.precision is None:
        check_identity(bundle, checkpoint.model, built.precision, built.kernels)
    else:
        check_identity(bundle, checkpoint.model, request.precision, request.kernels)
    graphs = checked_graphs(bundle)
    migration = None if request.ranges is None else read_ranges(request.ranges).migration
    check_migration(bundle, migration)
    draft = open_draft_layer(bundle, request.draft_layer, checkpoint)
    with Verification(
        request, bundle, graphs, checkpoint.reader, events, migration, draft
    ) as verification:
        engines = verification.check_engines()
        broken = any(check.problems for check in engines)
        tokens = None if broken else verification.check_tokens()
        sound = tokens is not None and not tokens.problems
        answers = verification.check_answers() if sound else None
        notes = verification.notes()
    return VerificationReport(
        engines=engines,
        tokens=tokens,
        answers=answers,
        notes=notes,
        remedies=tuple(remedies(built.precision, built.target, is_migrated=migration is not None)),
        seconds=perf_counter() - start,
    )


class Verification:
    """The checks of a bundle whose model and precision have been confirmed.

    A context manager. ONNX graphs, including canonical ones, run on the bundle's own target; for
    TensorRT's targets they run on the CPU, and plans run if the GPU for which they were built is
    present.
    """

    def __init__(
        self,
        request: VerificationRequest,
        bundle: EngineBundle,
        graphs: Mapping[str, onnx.GraphProto],
        reader: TensorReader,
        events: Events,
        migration: Migration | None,
        draft: TrainedDraftLayer | None,
    ) -> None:
        self._began = process_time()
        self._token_seconds = 0.0
        self._unasked: tuple[str, ...] = ()
        self._request = request
        self._seed = request.source.seed
        self._memory = min(request.verify_memory, available_memory())
        self._bundle = bundle
        self._graphs = graphs
        manifest = bundle.manifest
        self._model, self._precision, form = manifest.model, manifest.precision, manifest.form
        self._reader = reader
        self._is_compiled = target_of(manifest.target).is_compiled
        self._quantized = Reference(self._model, self._precision, reader, form, migration)
        float_precision = PrecisionSpec(dtype=self._precision.dtype)
        self._canonical = Reference(self._model, float_precision, reader, migration=migration)
        self._draft = None
        if draft is not None:  # no factors were measured for its inputs
            formats = draft_layer_precision(self._precision, form)
            self._draft = Reference(draft.model, formats, draft.reader, form)
        self._cpu = open_backend(DEFAULT_TARGET if self._is_compiled else manifest.target)
        # Runs plans; without it, the reason.
        self._gpu, self._no_gpu = plan_backend(bundle) if self._is_compiled else (None, "")
        self._events = events

    def __enter__(self) -> Self:
        """Return self; everything is already open."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the backends."""
        if self._gpu is not None:
            self._gpu.close()
        self._cpu.close()

    def notes(self) -> tuple[str, ...]:
        """Return a sentence for each part that was not checked."""
        if not self._is_compiled:
            is_skipped = self._bundle.manifest.trained_draft is not None and self._draft is None
            return (*((_UNCOMPARED_DRAFT,) if is_skipped else ()), *self._unasked)
        notes = [*self._unasked]
        if self._gpu is None:
            notes.append(f"plans were built, not run: {self._no_gpu}")
            if not self._is_float:
                notes.append("quantised weights were not compared: canonical engines have floats")
            if self._runs_canonical:
                notes.append("greedy tokens are those of the canonical engines, on the CPU")
        if not self._bundle.manifest.canonical:
            notes.append(
                "canonical engines were not kept, so their weights were not compared; export "
                "with --keep-canonical to compare them later"
            )
        elif not self._runs_canonical:
            notes.append(
                "canonical engines were not run: ONNX Runtime has no bfloat16 products on CPUs"
            )
        return tuple(notes)

    @property
    def _is_float(self) -> bool:
        """Return True if nothing is quantised."""
        return divergence_bound(self._precision) is None

    @property
    def _runs_canonical(self) -> bool:
        return bool(self._bundle.manifest.canonical) and self._precision.dtype != "bfloat16"

    def check_engines(self) -> tuple[EngineCheck, ...]:
        """Check every engine against its module, including canonical (unquantised) ones."""
        manifest = self._bundle.manifest
        canonical: list[_Job] = [
            (f"canonical {spec.name}", partial(self._check_graph, spec, self._canonical))
            for spec in manifest.canonical
        ]
        jobs = canonical
        if self._gpu is not None:
            jobs = canonical + [
                (name, partial(self._check_plan, self._gpu, spec, bucket))
                for name, spec, bucket in plans(self._bundle)
            ]
        elif not self._is_compiled:
            jobs = [
                (spec.name, partial(self._check_graph, spec, self._quantized))
                for spec in manifest.all_engines
            ]
            jobs += [*self._draft_jobs(), *canonical]
        checks = []
        chats = self._bundle.manifest.chat_template is not None
        self._events.stage("verifying", len(jobs) + 2 + chats)  # own and reference tokens, answers
        for label, check in jobs:
            checks.append(check().model_copy(update={"engine": label}))
            self._events.advance(label)
        return tuple(checks)

    def _draft_jobs(self) -> Iterator[_Job]:
        """Yield checks of engines that only drafts run; a draft layer's need its source files."""
        trained, head = self._bundle.manifest.trained_draft, self._bundle.manifest.draft_head
        if trained is not None and self._draft is not None:
            for spec in trained.engines:
                index = 0 if spec.kind is EngineKind.LAYER else None
                yield spec.name, partial(self._check_graph, spec, self._draft, index)
        if head is not None:
            default = engine_tolerance(self._precision, head.engine.kind, self._quantized.form)
            yield (
                head.engine.name,
                partial(
                    check_draft_head,
                    self._bundle,
                    self._cpu,
                    head,
                    self._stored(head.engine),
                    self._quantized,
                    self._tolerance(default),
                    self._seed,
                ),
            )

    def _check_graph(
        self, spec: EngineSpec, reference: Reference, layer_index: int | None = None
    ) -> EngineCheck:
        """Check an ONNX graph: its weights bit for bit, and its results if the CPU can run it.

        ``layer_index``: the engine's index in the reference, if it differs from the engine's own.
        """
        stored = self._stored(spec)
        index = spec.layer_index if layer_index is None else layer_index
        builder = ReferenceBuilder(reference, spec.kind, index)
        problems = [weight_problem(name, stored(name), array) for name, array in builder.tensors()]
        differing = tuple(problem for problem in problems if problem is not None)
        if reference.precision.dtype == "bfloat16" and not reference.has_own_kernels:
            return EngineCheck(
                engine=spec.name,
                worst_tensor="nothing",
                error=0.0,
                tolerance=1.0,
                weights_differ=differing,
                ran=False,
            )
        return check_engine(
            spec,
            SessionCalls(self._cpu.load(self._bundle, spec)),
            ModuleCalls(builder.module),
            self._model,
            self._tolerance(engine_tolerance(reference.precision, spec.kind, reference.form)),
            self._seed,
            differing,
            independent=reference.is_exact(spec.kind),
        )

    def _stored(self, spec: EngineSpec) -> Callable[[str], Array | None]:
        """Return a function that reads an initialiser of an engine's graph."""
        return graph_tensors(self._bundle.locate(spec.graph).parent, self._graphs[spec.graph])

    def _check_plan(
        self, gpu: EngineBackend, spec: EngineSpec, bucket: KVBucket | None
    ) -> EngineCheck:
        """Check a plan on its GPU; its weights can't be read back."""
        return check_engine(
            spec,
            plan_calls(self._bundle, gpu, spec, bucket),
            ModuleCalls(ReferenceBuilder(self._quantized, spec.kind, spec.layer_index).filled()),
            self._model,
            self._tolerance(plan_tolerance(self._precision, spec.kind)),
            self._seed,
            (),
        )

    def _tolerance(self, default: Tolerance) -> Tolerance:
        atol = self._request.atol
        return default if atol is None else Tolerance(atol, atol)

    def check_tokens(self) -> TokenCheck | None:
        """Compare greedy tokens at full depth with Hugging Face's, in the bundle's float type.

        The bundle generates if it fits in ``verify_memory``; otherwise its engines, loaded one at a
        time, read random tokens. Plans generate on their GPU; without it, canonical engines read.
        Returns None if nothing can run.
        """
        runs_plans = self._gpu is not None
        if self._is_compiled and not runs_plans and not self._runs_canonical:
            return None
        start = process_time()
        generates = self._generates
        texts = greedy_texts(self._bundle, self._seed) if generates else self._streamed_texts()
        rows = [text.read for text in texts]
        self._events.advance("tokens of the bundle")
        logits = hugging_face_logits(rows, self._model, self._precision.dtype, self._reader)
        self._events.advance("tokens of the reference")
        self._token_seconds = process_time() - start
        is_float = self._is_float or (self._is_compiled and not runs_plans)
        compared = partial(
            compare_tokens,
            texts,
            logits,
            self._request.atol or token_tolerance(self._precision),
            required=is_float,
            bound=self._divergence_bound(is_float=is_float),
        )
        check, dtype = compared(), self._precision.dtype
        if not check.problems or dtype == "float32" or self._request.atol is not None:
            return check
        rounded = hugging_face_logits(rows, self._model, dtype, self._reader, computes_in=dtype)
        return compared(rounded_logits=rounded)

    @property
    def _generates(self) -> bool:
        """Return True if the bundle can generate here, with all of its engines loaded."""
        fits_here = loaded_bytes(self._bundle) <= self._memory and not self._is_compiled
        return (self._gpu is not None or fits_here) and self._model.max_seq_len > 1

    def check_answers(self) -> AnswerCheck | None:
        """Compare answers to built-in questions with those at full precision.

        This takes at most a minute of processor time, or as long as the verification so far if that
        is longer. Returns None for random weights, without a chat template, and if the bundle can't
        generate.
        """
        manifest = self._bundle.manifest
        is_chat = manifest.tokenizer is not None and manifest.chat_template is not None
        if self._request.source.load_format == "dummy" or not is_chat:
            return None
        if not self._generates:
            if not self._is_compiled:
                self._unasked = ("no questions were asked; that needs a larger verify_memory",)
            return None
        tokenizer = Tokenizer.of(self._bundle)
        assert tokenizer is not None
        with closing(tokenizer):
            return self._compared_answers(tokenizer)

    def _compared_answers(self, tokenizer: Tokenizer) -> AnswerCheck | None:
        """Ask as many questions as time allows; return None if none can be asked."""
        try:
            questions = asked_questions(self._bundle, tokenizer)
        except UsageError as error:
            self._unasked = (f"no questions were asked: {error}",)
            return None
        if not questions:
            self._unasked = ("no questions were asked: they and their answers are too long for it",)
            return None
        began = process_time()
        seconds = max(_ANSWER_SECONDS, began - self._began)
        answers = compare_answers(
            self._bundle,
            tokenizer,
            affordable(questions, seconds, self._token_seconds),
            self._reader,
            began + seconds,
            holds_reference=reference_bytes(self._model) <= self._memory,
        )
        self._events.advance("answers to questions")
        return answers

    def _divergence_bound(self, *, is_float: bool) -> DivergenceBound | None:
        """Return the requested bound, else the default of a quantised precision."""
        if (largest := self._request.max_divergence) is not None:
            return DivergenceBound(largest, largest)
        return None if is_float else divergence_bound(self._precision)

    def _streamed_texts(self) -> list[GreedyText]:
        manifest = self._bundle.manifest
        specs = manifest.canonical if self._is_compiled else manifest.engines
        engines = {(spec.kind, spec.layer_index): spec for spec in specs}

        def load(kind: EngineKind, layer_index: int | None) -> SessionCalls:
            return SessionCalls(self._cpu.load(self._bundle, engines[kind, layer_index]))

        rows = random_prompts(self._model, self._seed)
        kv_dtype = self._bundle.manifest.kv_dtype
        logits = streamed_logits(rows, self._model, kv_dtype, load)
        return [text_from_logits(row, each) for row, each in zip(rows, logits, strict=True)]
