"""The plan of an export or a build, as far as it is known before any work starts."""

from __future__ import annotations

import math
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from ...engines.bundle.place import (
    CHAT_TEMPLATE_NAME,
    NGRAMS_NAME,
    TOKENIZER_NAME,
    bundle_place,
)
from ...engines.errors import CapacityError
from ...engines.manifest import (
    NUM_JOINED,
    EngineKind,
    FloatType,
    Kernels,
    ModelSpec,
    PrecisionSpec,
    Quantization,
    kv_width,
)
from ...engines.memory import ITEM_BYTES, WEIGHTS_ALIGNMENT
from ...runtime.schedule import ExitSchedule
from ..architecture.architecture import engine_parameters
from ..architecture.weights import engine_name
from ..checkpoint.chat import CheckpointChat
from ..checkpoint.draft_layer import TrainedDraftLayer
from ..quantization.quantize import stored_layout
from ..quantization_config import DEFAULT_TARGET, QuantizationConfig, draft_layer_precision
from ..verification.report import VerificationRequest
from .report import Stages

if TYPE_CHECKING:
    from ..building.engine import BuiltEngine
    from ..building.journal import Journal
    from ..building.tensorrt_options import TensorRtOptions

_GRAPH_BYTES = 1 << 16  # upper bound of any engine's graph without weights
_FIXED_SECONDS = 10.0  # imports and traces
_SECONDS_PER_GIGAWEIGHT: dict[Quantization, float] = {  # on 2 cores, NVMe, page cache
    "none": 4.0,
    "int8": 6.0,
    "int8-block": 8.0,
    "int4": 8.0,
    "fp8": 8.0,
}
_PLAN_BYTES = 4 << 20  # per plan, besides its weights: kernels for two profiles
_SECONDS_PER_PLAN = 0.5  # TensorRT-RTX; the full library times kernels and takes longer
_ITEM_BITS = {name: 8 * size for name, size in ITEM_BYTES.items()} | {"int4": 4, "float8_e4m3fn": 8}


@dataclass(frozen=True)
class PlannedEngine:
    """An engine to be built; ``size`` slightly overestimates the bytes of its files.

    TensorRT's engines have one plan for each of ``capacities``, or a single one if it is empty. For
    an engine that only drafts run, ``drafted`` is the structure by which its parameters are named,
    those of a layer as layer 0's; for the model's own engines it is None.
    """

    kind: EngineKind
    layer_index: int | None
    size: int
    capacities: tuple[int, ...] = ()
    drafted: ModelSpec | None = None

    @property
    def is_draft(self) -> bool:
        """True if only drafts run the engine."""
        return self.drafted is not None

    @property
    def name(self) -> str:
        """Return ``embed``, ``layer_000`` ..., ``head``, ``candidates`` or ``layer_draft`` …."""
        return engine_name(self.kind, self.layer_index, is_draft=self.is_draft)


@dataclass(frozen=True)
class DraftParts:
    """The parts that a bundle has for drafts.

    ``text``: the recommended drafts. ``layer``: the draft layer. ``head_tokens``: the number of
    tokens that the narrow head scores. ``ngrams``: the content of the file of n-grams. Each is None
    if the bundle has none. ``warnings`` are sentences about limitations of the drafts.
    """

    text: str | None = None
    layer: TrainedDraftLayer | None = None
    head_tokens: int | None = None
    ngrams: bytes | None = None
    warnings: tuple[str, ...] = ()


class EngineSource(ABC):
    """A thread-safe source of ONNX engines.

    ``tool_versions``: the versions of all tools that affect the bytes of engines and plans.
    """

    tool_versions: dict[str, str]

    @abstractmethod
    def provenance(self) -> dict[str, str]:
        """Return the origin of the weights, for the manifest."""

    @abstractmethod
    def engine(self, planned: PlannedEngine, form: str, precision: PrecisionSpec) -> BuiltEngine:
        """Return one engine, on disk, lowered for the entry ``form`` of ``TARGETS``."""


@dataclass(frozen=True)
class BundlePlan:
    """The plan of an export or a build. ``canonical_size`` is 0 unless canonical engines are kept.

    ``open_source`` opens the source of ONNX engines for a run's directory and journal; ``origin``
    describes it. ``engines`` are in the manifest's order, then those of a draft layer, if any; a
    narrow head is cut from the head's graph. ``temporary_size`` is written during the run and
    deleted at the end. ``tensorrt`` is None unless TensorRT compiles the engines.
    ``verification`` is run before the bundle is published.
    """

    output: Path
    target: str
    kernels: Kernels | None
    model: ModelSpec
    precision: PrecisionSpec
    schedule: ExitSchedule
    engines: tuple[PlannedEngine, ...]
    tokenizer: bytes | None
    prompt_template: str | None
    chat: CheckpointChat | None
    origin: dict[str, str]
    open_source: Callable[[Path, Journal, Stages], EngineSource]
    tensorrt: TensorRtOptions | None = None
    drafts: DraftParts = DraftParts()
    canonical_size: int = 0
    temporary_size: int = 0
    verification: VerificationRequest | None = None
    warnings: tuple[str, ...] = ()

    @property
    def texts(self) -> dict[str, bytes]:
        """Return the content of files other than engines, by name."""
        chat = None if self.chat is None else self.chat.content
        found = {TOKENIZER_NAME: self.tokenizer, CHAT_TEMPLATE_NAME: chat}
        found[NGRAMS_NAME] = self.drafts.ngrams
        return {name: content for name, content in found.items() if content is not None}

    @property
    def form(self) -> str:
        """Return the form to which graphs are lowered; see ``Manifest.form``."""
        return self.kernels or self.target

    def precision_of(self, planned: PlannedEngine) -> PrecisionSpec:
        """Return the number formats of an engine: those of the bundle, or of its draft layer."""
        if planned.is_draft:
            return draft_layer_precision(self.precision, self.form)
        return self.precision

    @property
    def keeps_canonical(self) -> bool:
        """Return True if the bundle also contains canonical engines."""
        return self.canonical_size > 0

    @property
    def size(self) -> int:
        """Return the bytes of the bundle."""
        return self.canonical_size + sum(engine.size for engine in self.engines)

    @property
    def shortage(self) -> str | None:
        """Return a message if the output's disk lacks space for all files, else None."""
        place = bundle_place(self.output)
        parent = next(parent for parent in place.target.parents if parent.exists())
        written = sum(path.stat().st_size for path in place.partial.rglob("*") if path.is_file())
        free = shutil.disk_usage(parent).free + written
        if (needed := self.size + self.temporary_size) <= free:
            return None
        return (
            f"needs {needed / 1e6:,.1f} MB; {free / 1e6:,.1f} MB are free on that disk; "
            "free some, or choose another with --output"
        )

    def check_space(self) -> None:
        """Raise CapacityError if there is a ``shortage``."""
        if (shortage := self.shortage) is not None:
            raise CapacityError(str(self.output), shortage)

    @property
    def kv_bytes_per_token(self) -> int:
        """Return the bytes of keys and values per position of one row at full depth."""
        model, dtype = self.model, self.precision.kv_dtype or self.precision.dtype
        heads = 2 * model.num_layers * model.num_kv_heads
        return heads * kv_width(dtype, model) * ITEM_BYTES[dtype]

    @property
    def estimated_seconds(self) -> float:
        """Return a rough estimate, without download and verification."""
        rates = {
            EngineKind.EMBED: _SECONDS_PER_GIGAWEIGHT["none"],
            EngineKind.LAYER: _SECONDS_PER_GIGAWEIGHT[self.precision.quantize],
            EngineKind.HEAD: _SECONDS_PER_GIGAWEIGHT[self.precision.head_quantize],
            EngineKind.CANDIDATES: 0.0,
        }
        rates |= dict.fromkeys(NUM_JOINED, rates[EngineKind.LAYER])
        plans = sum(len(engine.capacities) or 1 for engine in self.engines)
        compiling = 0.0 if self.tensorrt is None else _SECONDS_PER_PLAN * plans
        return (
            _FIXED_SECONDS
            + compiling
            + sum(
                rates[engine.kind] * math.prod(parameter.shape) / 1e9
                for engine in self.engines
                for parameter in engine_parameters(
                    engine.kind, engine.drafted or self.model, engine.layer_index
                )
            )
        )


def bundle_path(config: QuantizationConfig, stem: str, dtype: FloatType) -> Path:
    """Return ``config.output``, else a directory here named after ``stem``, precision and target.

    >>> config = QuantizationConfig(target="tensorrt", quantize="int4")
    >>> bundle_path(config, "opt-1.3b", "float16").name
    'opt-1.3b-fp16-int4-tensorrt.skipdec'
    """
    if config.output is not None:
        return config.output.absolute()
    precision = {"float32": "", "float16": "-fp16", "bfloat16": "-bf16"}[dtype]
    quantize = "" if config.quantize == "none" else f"-{config.quantize}"
    target = "" if config.target == DEFAULT_TARGET else f"-{config.target}"
    return Path.cwd() / f"{stem}{precision}{quantize}{target}.skipdec"


def planned_engines(
    model: ModelSpec,
    precision: PrecisionSpec,
    form: str,
    tensorrt: TensorRtOptions | None = None,
    drafts: DraftParts = DraftParts(),
) -> tuple[PlannedEngine, ...]:
    """Return the engines of a bundle in the manifest's order, with the size of their files."""
    sized = lru_cache(partial(_planned_size, form=form))

    def planned(kind: EngineKind, index: int | None = None) -> PlannedEngine:
        if tensorrt is None:
            return PlannedEngine(kind, index, sized(kind, model, precision))
        capacities = tensorrt.capacities(kind)
        size = (sized(kind, model, precision) + _PLAN_BYTES) * (len(capacities) or 1)
        return PlannedEngine(kind, index, size, capacities)

    def drafted(kind: EngineKind, own: ModelSpec) -> PlannedEngine:
        index = 0 if kind is EngineKind.LAYER else None
        size = sized(kind, own, draft_layer_precision(precision, form))
        return PlannedEngine(kind, index, size, drafted=own)

    layers = (planned(EngineKind.LAYER, index) for index in range(model.num_layers))
    ends = (planned(EngineKind.HEAD), planned(EngineKind.CANDIDATES))
    draft: list[PlannedEngine] = []
    if drafts.layer is not None:
        kinds = (*NUM_JOINED, EngineKind.LAYER, EngineKind.HEAD)
        draft = [drafted(kind, drafts.layer.model) for kind in kinds]
    return (planned(EngineKind.EMBED), *layers, *ends, *draft)


def _planned_size(kind: EngineKind, model: ModelSpec, precision: PrecisionSpec, form: str) -> int:
    size = _GRAPH_BYTES
    for dtype, shape in stored_layout(kind, model, precision, form).values():
        nbytes = -(-math.prod(shape) * _ITEM_BITS[dtype] // 8)
        size += -(-nbytes // WEIGHTS_ALIGNMENT) * WEIGHTS_ALIGNMENT
    return size
