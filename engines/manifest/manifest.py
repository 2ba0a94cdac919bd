"""The manifest of a bundle: its model, precision, engines and files, as manifest.json has them."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Annotated, Any, Self

from pydantic import (
    AfterValidator,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
    model_validator,
)

from .. import constants
from ..documents import canonical_text, document_digest, parse_json
from ..errors import BundleError
from .engine_spec import (
    BuildSpec,
    DraftHead,
    EngineKind,
    EngineSpec,
    FileRecord,
    TrainedDraft,
    is_called,
)
from .fields import Record, RelativePath, without_nulls
from .kv_cache import kv_width
from .model_spec import ModelSpec
from .precision import FloatType, Kernels, KVType, PrecisionSpec
from .requests import ChatFile, PromptTemplate

FORMAT_VERSION = constants.integer("format_version")
TUNED_SCHEDULE = constants.text("tuned_schedule")  # key of `Manifest.source`, written by tuning
EARLY_EXIT = constants.text("early_exit")  # its value if every layer was trained to be the last

_OPTIONAL = (  # fields that are left out of the JSON if they are absent
    *("kernels", "prompt_template", "chat_template"),
    *("draft", "trained_draft", "draft_head", "ngrams"),
)


class Manifest(Record):
    """The content of manifest.json: no times, hosts or absolute paths, so it is reproducible."""

    format_version: int = FORMAT_VERSION
    target: str
    kernels: Kernels | None = Field(
        default=None, description="operators of the graphs; absent: the target's own"
    )
    model: ModelSpec
    precision: PrecisionSpec
    engines: tuple[EngineSpec, ...]
    candidates: (
        Annotated[EngineSpec, AfterValidator(is_called("candidates", EngineKind.CANDIDATES))] | None
    ) = Field(default=None, description="picks the most probable tokens on a device")
    canonical: tuple[EngineSpec, ...] = Field(
        default=(), description="engines stored by --keep-canonical"
    )
    draft: str | None = Field(
        default=None, description="what the draft option auto stands for; absent: own"
    )
    trained_draft: TrainedDraft | None = Field(
        default=None, description="engines of --draft-layer; absent: none"
    )
    draft_head: DraftHead | None = Field(default=None, description="narrow head; absent: none")
    ngrams: RelativePath | None = Field(
        default=None, description="n-grams of --ngrams, from which drafts start; absent: none"
    )
    build: BuildSpec | None = Field(
        default=None, description="settings of TensorRT, for targets that it compiles"
    )
    tokenizer: RelativePath | None = None
    prompt_template: PromptTemplate | None = Field(
        default=None, description="template of prompts in tuning; absent: none"
    )
    chat_template: ChatFile | None = Field(
        default=None, description="renders the messages of a chat; absent: none"
    )
    files: tuple[FileRecord, ...]
    tool_versions: dict[str, str] = Field(default_factory=dict)
    source: dict[str, str] = Field(
        default_factory=dict, description="load format, revision and content hash of the checkpoint"
    )
    digest: str = ""

    @model_serializer(mode="wrap")
    def _without_absent(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out absent fields, because most bundles lack some of them."""
        return without_nulls(serialize(self), *_OPTIONAL)

    @model_validator(mode="after")
    def _check_kernels(self) -> Self:
        if self.precision.kv_dtype is not None and self.kernels is None:
            raise ValueError(
                f"kv_dtype is {self.precision.kv_dtype} without kernels that know other types than "
                "the activations'; allowed with the kernels skipdec"
            )
        if self.precision.table_dtype is not None and self.kernels is None:
            raise ValueError(
                f"table_dtype is {self.precision.table_dtype}; allowed with the kernels skipdec"
            )
        return self

    @model_validator(mode="after")
    def _check_engines(self) -> Self:
        expected: list[tuple[str, EngineKind, int | None]] = [
            ("embed", EngineKind.EMBED, None),
            *(
                (f"layer_{index:03d}", EngineKind.LAYER, index)
                for index in range(self.model.num_layers)
            ),
            ("head", EngineKind.HEAD, None),
        ]
        if len(self.engines) != len(expected):
            raise ValueError(f"engines has {len(self.engines)} entries; expected: {len(expected)}")
        for engine, (name, kind, index) in zip(self.engines, expected, strict=True):
            if (engine.name, engine.kind, engine.layer_index) != (name, kind, index):
                raise ValueError(
                    f"engine {engine.name} is a {engine.kind} with layer_index "
                    f"{engine.layer_index}; expected: {name}, a {kind} with layer_index {index}"
                )
        known = set[str]()
        for record in self.files:
            if record.path in known:
                raise ValueError(f"files lists {record.path} twice")
            known.add(record.path)
        for engine in (*self.all_engines, *self.draft_engines, *self.canonical):
            buckets = (bucket.graph for bucket in engine.buckets)
            for path in (engine.graph, *engine.weights, *buckets):
                if path not in known:
                    raise ValueError(f"engine {engine.name} names {path}, not listed in files")
        return self

    @model_validator(mode="after")
    def _check_texts(self) -> Self:
        """Check that chat template and n-grams are listed files, and chats have a tokenizer."""
        chat = None if self.chat_template is None else self.chat_template.path
        known = {record.path for record in self.files}
        for name, path in (("chat_template", chat), ("ngrams", self.ngrams)):
            if path is not None and path not in known:
                raise ValueError(f"{name} names {path}, not listed in files")
        if chat is not None and self.tokenizer is None:
            raise ValueError("chat_template is present, but tokenizer is null")
        return self

    @model_validator(mode="after")
    def _check_drafts(self) -> Self:
        """Check the engines of drafts against the model whose layers and head they share."""
        head, model = self.draft_head, self.model
        if (trained := self.trained_draft) is not None:
            _check_trained(trained, model)
        if head is not None and head.tokens >= model.vocab_size:
            raise ValueError(
                f"draft_head has {head.tokens} tokens; allowed: fewer than {model.vocab_size}, "
                "the model's vocabulary"
            )
        if head is not None and not set(head.engine.weights) <= set(self.head.weights):
            raise ValueError(
                f"draft_head reads {', '.join(head.engine.weights)}; allowed: only the head's "
                f"weights, {', '.join(self.head.weights)}"
            )
        return self

    @property
    def draft_engines(self) -> tuple[EngineSpec, ...]:
        """Return the engines that only drafts run, the layer before the head."""
        trained = () if self.trained_draft is None else self.trained_draft.engines
        return trained if self.draft_head is None else (*trained, self.draft_head.engine)

    @property
    def all_engines(self) -> tuple[EngineSpec, ...]:
        """Return ``engines`` and the engine for candidates, if any: all but those of drafts."""
        return self.engines if self.candidates is None else (*self.engines, self.candidates)

    @property
    def form(self) -> str:
        """Return the entry of ``TARGETS`` that lowered the graphs and quantised the weights."""
        return self.kernels or self.target

    @property
    def hidden_dtype(self) -> FloatType:
        """Return the type of the activations between engines."""
        return self.precision.dtype if self.kernels is None else "float32"

    @property
    def kv_dtype(self) -> KVType:
        """Return the type of the KV cache's elements."""
        return self.precision.kv_dtype or self.precision.dtype

    @property
    def kv_width(self) -> int:
        """Return the number of elements per token and head in the KV cache."""
        return kv_width(self.kv_dtype, self.model)

    @property
    def embed(self) -> EngineSpec:
        """Return the embedding engine."""
        return self.engines[0]

    @property
    def layers(self) -> tuple[EngineSpec, ...]:
        """Return the decoder layers' engines, lowest first."""
        return self.engines[1:-1]

    @property
    def head(self) -> EngineSpec:
        """Return the language-model head's engine."""
        return self.engines[-1]

    def with_digest(self) -> Manifest:
        """Return a copy whose ``digest`` is that of its content."""
        return self.model_copy(update={"digest": self.content_digest()})

    def content_digest(self) -> str:
        """Return the SHA-256 of manifest.json with 64 zeros in place of the ``digest``."""
        return document_digest(self.model_dump(mode="json"))

    def to_json(self) -> str:
        """Return the text of manifest.json."""
        return canonical_text(self.model_dump(mode="json"))

    @classmethod
    def from_json(cls, text: str | bytes, subject: str) -> Manifest:
        """Parse and check manifest.json; ``subject`` names the file in errors.

        Raises BundleError for JSON that is broken, of another format version, whose digest does
        not match its content, or that has missing or impossible fields: in this order, so that no
        value is used before the digest is checked.
        """
        remedy = "export the model again"
        document = parse_json(text, BundleError, subject=subject, remedy=remedy, exact=True)
        version = document.get("format_version") if isinstance(document, dict) else None
        if version != FORMAT_VERSION:
            raise BundleError(
                subject,
                f"has format version {version!r:.40}; this skipdec reads {FORMAT_VERSION}; "
                "export the model again or install the skipdec that wrote it",
            )
        expected = document_digest(document)
        if document.get("digest") != expected:
            raise BundleError(
                subject,
                f"digest is {str(document.get('digest'))[:12]}…, its content has "
                f"{expected[:12]}…; the file was changed, export again",
            )
        return cls.from_document(document, subject)

    @classmethod
    def from_document(cls, document: Any, subject: str) -> Manifest:  # noqa: ANN401  (JSON)
        """Check a manifest's JSON value except for its digest. Raises as `from_json`."""
        try:
            return cls.model_validate_json(json.dumps(document), strict=True)
        except ValidationError as error:
            problems = [
                f"{'.'.join(map(str, item['loc'])) or 'manifest'}: {item['msg']}"
                for item in error.errors()
                if item["type"] != "default_factory_not_called"  # follows from another problem
            ]
            raise BundleError(subject, *problems) from error


def _check_trained(draft: TrainedDraft, model: ModelSpec) -> None:
    """Check that ``draft`` reads layers and scores tokens that the model has, each once."""
    reads, ids = draft.reads, draft.token_ids
    if list(reads) != sorted(reads) or reads[-1] > model.num_layers:
        raise ValueError(
            f"trained_draft reads states after {', '.join(map(str, reads))} layers; allowed: "
            f"ascending, up to the model's {model.num_layers}"
        )
    if any(later <= token for token, later in pairwise(ids)) or ids[-1] >= model.vocab_size:
        raise ValueError(
            f"trained_draft has {len(ids)} token_ids; allowed: ascending, each once, below the "
            f"model's {model.vocab_size}"
        )
