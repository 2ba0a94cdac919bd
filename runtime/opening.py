"""The options with which every part of skipdec opens a bundle."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict, Unpack

from pydantic import BeforeValidator, Field, PlainSerializer

from ..engines.bundle import Verify, WeightsPlace
from ..engines.checking import MemorySize, Option, ValidatedConfig, field_problems
from ..engines.constants import integer
from ..engines.errors import UsageError, shown
from ..engines.host.processor import available_cores, thread_problems
from ..engines.targets import default_device
from .admission import parse_admission
from .drafting.config import is_auto, parse_draft
from .schedule import ExitSchedule
from .schedule.text import beyond_notation, document_text, read_document

if TYPE_CHECKING:
    from ..engines.backends.session import EngineBackend

    ScheduleChoice = str | ExitSchedule | None
else:
    ScheduleChoice = Any  # checked against the depth of a bundle, which is not known here


ENGINE_OPTIONS = ("device", "threads", "weights", "verify")
"""Options of a command that chooses schedules and batch sizes itself."""
GENERATOR_OPTIONS = (
    *ENGINE_OPTIONS,
    "schedule",
    "draft",
    "max_batch_size",
    "kv_memory",
    "raw_prompts",
)
"""Options of a command that runs one call after another."""

_MAX_ROWS = integer("max_rows")  # planning a batch takes memory for each row before it runs
_SHARING_BY_BOOLEAN = {"true": "shared", "false": "off"}  # Triton passes booleans as texts


def _schedule_text(schedule: str | ExitSchedule | None) -> str | None:
    return document_text(schedule) if isinstance(schedule, ExitSchedule) else schedule


def _read_if_document(schedule: object) -> object:
    if isinstance(schedule, str) and beyond_notation(schedule) is not None:
        return read_document(schedule)
    return schedule


def _from_boolean(value: object) -> object:
    return _SHARING_BY_BOOLEAN.get(str(value).lower(), value)


PrefixSharing = Annotated[Literal["shared", "client", "off"], BeforeValidator(_from_boolean)]
"""Who reuses cached prefixes: all clients (or True), each client its own, or nobody (or False)."""


class OpenKeywords(TypedDict, total=False):
    """The fields of `OpenOptions` as keyword arguments, with every type that a field accepts."""

    schedule: str | ExitSchedule | None
    device: str | None
    threads: int | None
    max_batch_size: int
    kv_memory: int | str | None
    raw_prompts: bool
    draft: str | None
    weights: WeightsPlace
    verify: Verify
    max_waiting: int
    max_prefill_tokens: int | None
    max_model_len: int | None
    admission: str | None
    prefix_cache: bool | PrefixSharing
    kv_shares: int


class OpenOptions(ValidatedConfig):
    """Options of opening a bundle: where its engines run, and the limits of memory and requests.

    >>> options = OpenOptions(schedule="2x", threads=2, kv_memory="2GiB")
    >>> with Generator.open("opt-1.3b", options) as generator: ...

    `Generator.open`, `AsyncEngine.open`, `ProcessEngine.open`, the commands and Triton's model
    take it whole; libskipdec's ``skipdec_options`` has its names and defaults.
    ``max_waiting`` and the fields after it, up to ``prefix_cache``, concern running batches, which
    serve requests that arrive at any time; a `Generator` reads them in `Generator.running_batch`
    only.

    ``schedule`` is the default of all requests: an ExitSchedule or its text; None is the bundle's
    own. If the text names a file, it is read once, here. ``threads`` is the size of each engine's
    thread pool on a CPU, or of the process's only pool in a command or a server. ``kv_memory`` is
    in bytes, or a text such as ``2GiB``; None allows half of the memory that the process may use,
    or on a GPU four fifths of what the engines leave free. ``weights``: skipdec's kernels read
    weights from "mapped" files, which open at once and are shared by processes, or "copied" into
    this process's memory, in huge pages, which makes steps faster. ``verify``: "full" hashes
    weights while they are loaded, "graphs" hashes only everything else. ``max_prefill_tokens``
    bounds one prefill call; a smaller value delays running requests less. ``max_model_len`` bounds
    the positions of a request; on a device each slot has memory for that many.
    ``prefix_cache``: "shared" and "client" cache the beginnings of prompts in up to a quarter of
    the KV memory; True and False mean "shared" and "off". With "shared" a client can infer from its
    time to first token what others sent. ``draft`` guesses tokens in advance and checks them, which
    changes no text, see `DraftConfig`. ``kv_shares`` is the number of processes that divide the
    default of ``kv_memory`` between them.
    """

    schedule: Annotated[
        ScheduleChoice,
        BeforeValidator(_read_if_document),
        PlainSerializer(_schedule_text),
        Option(),
    ] = Field(
        default=None,
        description="full, 2x, linear:max=16,min=8,… or a file, for requests without one "
        "(bundle's own)",
    )
    device: Annotated[str | None, Option()] = Field(
        default=None, description="cpu, cuda, cuda:1 or rehearsal (cpu; TensorRT: cuda)"
    )
    threads: Annotated[int | None, Option()] = Field(default=None, ge=1, description="(all cores)")
    max_batch_size: Annotated[int, Option()] = Field(
        default=integer("default_max_batch_size"),
        ge=1,
        le=_MAX_ROWS,
        description="maximum number of completions at once",
    )
    kv_memory: Annotated[MemorySize | None, Option()] = Field(
        default=None,
        ge=1,
        description="maximum memory of KV caches, e.g. 2GiB (half of the free memory)",
    )
    raw_prompts: bool = Field(
        default=False, description="ignore the prompt template that the model was tuned with"
    )
    draft: Annotated[str | None, Option()] = Field(
        default=None,
        description="own, lookup, own+ends:3, auto, …: the same text, sooner (off)",
    )
    weights: WeightsPlace = Field(
        default="mapped",
        description="map the files, or copy them: slower to open, faster steps on a CPU",
    )
    verify: Verify = Field(
        default="full", description="hash weights while they are loaded, or only graphs"
    )
    max_waiting: Annotated[int, Option()] = Field(
        default=integer("default_max_waiting"),
        ge=1,
        description="maximum number of waiting requests",
    )
    max_prefill_tokens: int | None = Field(
        default=None,
        ge=integer("min_prefill_tokens"),
        description="prompt tokens of one call; fewer delay running requests less (2048; on a "
        "GPU up to 8192)",
    )
    max_model_len: Annotated[int | None, Option()] = Field(
        default=None,
        ge=1,
        description="maximum positions of a request, prompt and completion (the bundle's)",
    )
    admission: Annotated[str | None, Option()] = Field(
        default=None, description="fcfs, or gang:min_free=2,hold_ms=8 (fcfs; on a GPU: gang)"
    )
    prefix_cache: Annotated[PrefixSharing, Option()] = Field(
        default="shared",
        description="on a CPU, reuse the beginnings of earlier prompts: those of all clients, "
        "of the same client, or off",
    )
    kv_shares: int = Field(default=1, ge=1)

    if TYPE_CHECKING:  # type checkers would allow only the types that fields hold

        def __init__(self, **fields: Unpack[OpenKeywords]) -> None: ...

    def _problems(self) -> Iterator[str]:
        yield from (f"`threads` {problem}" for problem in thread_problems(self.threads))
        if not is_auto(self.draft):
            yield from field_problems("draft", parse_draft, self.draft)
        yield from field_problems("admission", parse_admission, self.admission)

    @classmethod
    def of(cls, options: OpenOptions | None, /, **changes: Unpack[OpenKeywords]) -> OpenOptions:
        """Return ``options``, or the defaults, with ``changes``. Raises UsageError."""
        if options is None:
            return OpenOptions(**changes)
        if not isinstance(options, OpenOptions):
            problem = f"is {shown(options)}; allowed: OpenOptions, or its fields as keywords"
            raise UsageError("options", problem)
        return options.updated(**changes) if changes else options

    def open_backend(self, target: str, *, shares_pool: bool = False) -> EngineBackend:
        """Make the backend that runs bundles of ``target``.

        With ``shares_pool``, all engines on a CPU share the process's only pool, of
        ``process_threads``. Raises UsageError for options that do not fit the device, such as
        threads for engines on a GPU, and EnvironmentMismatchError without the device.
        """
        from ..engines.backends.session import open_backend  # imports NumPy

        device, threads = self.device or default_device(target), self.threads
        if shares_pool and device == "cpu":
            from ..engines.backends.ort import use_shared_thread_pool

            use_shared_thread_pool(self.process_threads)
            threads = None
        return open_backend(target, device=device, threads=threads, weights=self.weights)

    @property
    def process_threads(self) -> int:
        """The size of the process's one thread pool."""
        return self.threads or available_cores()
