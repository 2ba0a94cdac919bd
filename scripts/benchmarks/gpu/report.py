"""A Markdown page of GPU measurements, compared with targets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median

from skipdec.engines.host.console import escaped, markdown_table

BASELINE = "Hugging Face, static cache, torch.compile"

# Of the step of the compiled Hugging Face model, at every batch size.
AIMS = {"full": 1.0, "2x": 0.6, "5x": 0.3}

_HEADER = (
    "backend",
    "batch",
    "schedule",
    "layers run",
    "ms/step p50",
    "p95",
    "first token ms",
    "tokens/s",
    "gain of steps",
    "of bandwidth",
    "torch.compile ÷ ours",
)


_RUNNING_HEADER = (
    "running batch",
    "rows",
    "tokens/s",
    "static batches",
    "ms/step",
    "mixing loss",
    "texts as alone",
    "errors",
)


_COST_HEADER = ("batch", "schedule", "ms/step", "its engines", "beside them")
_PARTS_HEADER = ("part", "proves", "state", "seconds", "expected", "found")


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One backend at one batch size with one schedule."""

    backend: str
    batch_size: int
    schedule: str
    realised_depth: float
    step_milliseconds_p50: float
    step_milliseconds_p95: float
    time_to_first_token: float  # seconds
    tokens_per_second: float
    decode_speedup: float | None  # over full depth on the same backend; None: disturbed
    bytes_per_step: int


@dataclass(frozen=True, kw_only=True)
class RunningBatch:
    """Results of running_batch.py for one backend: requests at several depths in one batch.

    Speeds are of the whole run, prompts included. ``equal`` of ``compared`` texts are the same as
    alone.
    """

    backend: str
    rows: int
    requests: int
    failed: int
    compared: int
    equal: int
    tokens_per_second: float
    static_tokens_per_second: float
    step_milliseconds: float
    mixing_loss: float


@dataclass(frozen=True, kw_only=True)
class StepCost:
    """Medians of step_cost.py at one batch size and schedule."""

    batch_size: int
    schedule: str
    step_milliseconds: float
    engine_milliseconds: float
    beside_milliseconds: float


@dataclass(frozen=True, kw_only=True)
class PartRow:
    """One part of the check on the page; ``seconds`` None: it has not run yet."""

    name: str
    proves: str
    state: str
    expected: float  # seconds
    seconds: float | None
    found: str  # what it counted, in a few words
    words: str = ""  # the end of its output, if it did not pass


@dataclass(frozen=True)
class Unmeasured:
    """A measurement without figures, and the reason; ``batch_size`` None: at any batch size."""

    what: str
    batch_size: int | None
    reason: str


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """The compiled Hugging Face model at one batch size."""

    batch_size: int
    num_layers: int
    step_milliseconds: tuple[float, ...]  # mean of each repetition
    time_to_first_token: float  # median, seconds
    uses_cuda_graphs: bool = True  # torch.compile does without them for some graphs

    @property
    def milliseconds(self) -> float:
        """Median of the repetitions."""
        return median(self.step_milliseconds)


@dataclass(frozen=True, kw_only=True)
class DeviceFacts:
    """The device of all measurements."""

    name: str
    compute_capability: str
    cuda: str | None  # newest CUDA that the driver supports
    bandwidth: float  # bytes read and written per second
    bandwidth_passes: int


@dataclass(frozen=True, kw_only=True)
class GpuReport:
    """Results of scripts/gpu_check.sh so far."""

    title: str
    conditions: str  # model, weights, prompt, tokens, repetitions
    versions: str
    rehearsal: bool = False
    parts: tuple[PartRow, ...] = ()
    device: DeviceFacts | None = None
    cells: tuple[Cell, ...] = ()
    baselines: tuple[Baseline, ...] = ()
    running_batches: tuple[RunningBatch, ...] = ()
    costs: tuple[StepCost, ...] = ()
    unmeasured: tuple[Unmeasured, ...] = field(default=())

    def baseline(self, batch_size: int) -> Baseline | None:
        """Return the baseline at a batch size, if it could be measured."""
        return next((entry for entry in self.baselines if entry.batch_size == batch_size), None)


def bandwidth_fraction(cell: Cell, device: DeviceFacts) -> float:
    """Return bytes per second read by a step of ``cell`` as a fraction of the device's bandwidth.

    2.63 GB in 0.65 ms on a device of 4.3 TB/s: 0.94.
    """
    return cell.bytes_per_step / (cell.step_milliseconds_p50 / 1e3) / device.bandwidth


def judged_aims(report: GpuReport) -> Iterator[tuple[str, str, bool | None]]:
    """Yield each target, its result, and whether it was met; None if nothing was measured.

    The fastest backend of a cell counts.
    """
    for schedule, limit in AIMS.items():
        aim = f"`{schedule}`: at most {limit} of compiled Hugging Face's step at every batch size"
        cells = [cell for cell in _fastest(report.cells).values() if cell.schedule == schedule]
        ratios = {
            f"batch {cell.batch_size}, {cell.backend}": cell.step_milliseconds_p50
            / baseline.milliseconds
            for cell in cells
            if (baseline := report.baseline(cell.batch_size)) is not None
        }
        if not ratios:
            yield aim, "not measured", None
            continue
        worst = max(ratios, key=lambda name: ratios[name])
        seen = f"up to {ratios[worst]:.2f} ({worst})"
        complete = len(ratios) == len(cells) and not report.unmeasured
        yield aim, seen if complete else f"{seen}, of what was measured", ratios[worst] <= limit


def markdown(report: GpuReport) -> str:
    """Return the page: conditions, targets, parts, figures, and the words of what failed."""
    lines = [f"# {report.title}", ""]
    if report.rehearsal:
        lines += [
            "A rehearsal without a GPU: it only proves that the script runs; no figure counts.",
            "",
        ]
    lines += [f"{report.conditions} {report.versions}", ""]
    if (device := report.device) is not None:
        lines += [
            f"{device.name}, compute capability {device.compute_capability}, "
            f"CUDA {device.cuda or 'none'}; copies within its memory: "
            f"{device.bandwidth / 1e9:,.0f} GB/s read and written, best of "
            f"{device.bandwidth_passes}.",
            "",
        ]
    if not report.rehearsal:
        verdicts = {True: "met", False: "**missed**", None: "open"}
        lines += [f"- {aim}: {seen}, {verdicts[met]}" for aim, seen, met in judged_aims(report)]
        lines += [""]
    if report.parts:
        lines += [markdown_table(_PARTS_HEADER, map(_part_columns, report.parts)), ""]
    lines += [markdown_table(_HEADER, _rows(report))]
    if report.running_batches:
        rows = [_running_columns(entry) for entry in report.running_batches]
        lines += ["", markdown_table(_RUNNING_HEADER, rows)]
    if report.costs:
        lines += ["", markdown_table(_COST_HEADER, map(_cost_columns, report.costs))]
    for part in report.parts:
        if part.words:
            lines += ["", f"## {part.name}: {part.state}", "", "```text", part.words, "```"]
    return "\n".join(lines) + "\n"


def _fastest(cells: Sequence[Cell]) -> dict[tuple[int, str], Cell]:
    """Return the fastest backend's cell for each batch size and schedule."""
    found: dict[tuple[int, str], Cell] = {}
    for cell in sorted(cells, key=lambda cell: cell.step_milliseconds_p50):
        found.setdefault((cell.batch_size, cell.schedule), cell)
    return found


def _rows(report: GpuReport) -> Iterator[Sequence[str]]:
    for cell in report.cells:
        yield _cell_columns(cell, report)
    for baseline in report.baselines:
        tokens = baseline.batch_size / baseline.milliseconds * 1e3
        yield (
            BASELINE + ("" if baseline.uses_cuda_graphs else ", without CUDA graphs"),
            str(baseline.batch_size),
            "`full`",
            f"{baseline.num_layers:.1f}",
            f"{baseline.milliseconds:.3f}",
            "",
            f"{1e3 * baseline.time_to_first_token:.2f}",
            f"{tokens:,.0f}",
            "",
            "",
            "1.00×",
        )
    for entry in report.unmeasured:
        batch_size = "all" if entry.batch_size is None else str(entry.batch_size)
        yield (entry.what, batch_size, f"not measured: {escaped(entry.reason)}", *[""] * 8)


def _cell_columns(cell: Cell, report: GpuReport) -> tuple[str, ...]:
    baseline = report.baseline(cell.batch_size)
    fraction = None if report.device is None else bandwidth_fraction(cell, report.device)
    return (
        cell.backend,
        str(cell.batch_size),
        f"`{cell.schedule}`",
        f"{cell.realised_depth:.1f}",
        f"{cell.step_milliseconds_p50:.3f}",
        f"{cell.step_milliseconds_p95:.3f}",
        f"{1e3 * cell.time_to_first_token:.2f}",
        f"{cell.tokens_per_second:,.0f}",
        "disturbed" if cell.decode_speedup is None else f"{cell.decode_speedup:.2f}×",
        "" if fraction is None else f"{fraction:.2f}",
        f"{baseline.milliseconds / cell.step_milliseconds_p50:.2f}×" if baseline else "",
    )


def _running_columns(entry: RunningBatch) -> tuple[str, ...]:
    return (
        entry.backend,
        str(entry.rows),
        f"{entry.tokens_per_second:,.0f}",
        f"{entry.static_tokens_per_second:,.0f}",
        f"{entry.step_milliseconds:.3f}",
        f"{entry.mixing_loss:.2f}",
        f"{entry.equal} of {entry.compared}",
        str(entry.failed),
    )


def _cost_columns(entry: StepCost) -> tuple[str, ...]:
    return (
        str(entry.batch_size),
        f"`{entry.schedule}`",
        f"{entry.step_milliseconds:.3f}",
        f"{entry.engine_milliseconds:.3f}",
        f"{entry.beside_milliseconds:.3f}",
    )


def _part_columns(part: PartRow) -> tuple[str, ...]:
    return (
        part.name,
        part.proves,
        part.state if part.state in ("passed", "tried") else f"**{part.state}**",
        "" if part.seconds is None else f"{part.seconds:.0f}",
        f"{part.expected:.0f}",
        escaped(part.found),
    )
