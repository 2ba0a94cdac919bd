"""``skipdec generate --input``: answer lines of JSON with lines of JSON, in the same order."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...engines.documents import open_regular
from ...engines.errors import CapacityError, LogitsError, ScheduleError, UsageError
from ...engines.host.console import print_json, stderr_console
from ...engines.host.signals import Interruption
from ..generator import Generator
from ..requests.records import (
    BadRecord,
    Record,
    RecordId,
    joined,
    read_records,
    split_lines,
)
from ..requests.request import Request, make_request
from ..schedule import ExitSchedule
from ..tokens.outputs import Drafts, RequestOutput, StreamDelta
from .options import GenerateOptions
from .progress import GenerationProgress
from .prompts import stdin
from .results import ResultFile, result_line, run_parameters, to_bytes

Records = Sequence[Record | BadRecord]
Progress = Callable[[Sequence[StreamDelta]], None]
Attempt = Callable[[], AbstractContextManager[None]]
BATCHES_PER_CHUNK = 8  # with more, batches are of more even length; with fewer, a kill loses less


def run_lines(options: GenerateOptions, lines: Iterable[bytes]) -> None:
    """Run all records in ``lines`` that have no result yet; exit with 1 if some of them failed.

    Ctrl-C writes finished results and exits with 130.
    """
    records = list(read_records(lines, options.params))
    if options.output is None:
        _end(*_run(options, records, None))
        return
    assert options.input is not None
    if _is_input(options.output, options.input):
        raise UsageError("--output", f"{options.output} is also the input; name another file")
    line_of: dict[RecordId, int] = {
        record.record_id: record.line for record in records if isinstance(record, Record)
    }
    parameters = run_parameters(options)
    outcome = None
    with ResultFile(
        options.output, line_of, parameters, resume=options.resume, force=options.force
    ) as file:
        if file.done and not options.quiet:
            stderr_console().print(f"{len(file.done)} of {len(records)} lines are done already")
        if len(file.done) < len(records) or options.as_json:
            outcome = _run(options, records, file)
    if outcome is not None:
        _end(*outcome)


@contextmanager
def open_lines(options: GenerateOptions) -> Iterator[Iterable[bytes]]:
    """Open ``--input``. Raises UsageError if it can't be read."""
    assert options.input is not None
    if options.input == "-":
        yield split_lines(stdin())
        return
    try:
        file = open_regular(Path(options.input))
    except OSError as error:
        raise UsageError(
            "--input",
            f"{options.input} can't be read ({error.strerror or error}); give a file of JSON "
            "lines, or - for stdin",
        ) from error
    with file:
        yield split_lines(file)


def _run(
    options: GenerateOptions, records: Records, file: ResultFile | None
) -> tuple[Interruption, int]:
    """Run the records, write their lines; return the interruption and the number of errors."""
    from ...engines.host.progress import ConsoleProgress

    console = stderr_console()
    num_errors = 0
    with options.open_generator() as generator, Interruption() as interruption:
        if file is not None:
            file.check_bundle(generator.bundle.manifest.digest)
        runner = RecordRunner(
            generator,
            records,
            chunk_size=BATCHES_PER_CHUNK * options.opening.max_batch_size,
            done=frozenset() if file is None else file.done,
            cancelled=interruption.is_requested,
        )
        options.warn_if_untuned(generator, runner.schedules)
        with (
            ConsoleProgress(quiet=options.quiet) as events,
            GenerationProgress(
                runner.schedules,
                runner.num_completions,
                events,
                generator.kernels,
                generator.drafts.resolve(),
            ) as progress,
        ):
            for lines in runner.run(progress.update, progress.attempt):
                num_errors += sum("error" in line for line in lines)
                _write(lines, file)
            progress.count_drafts(runner.drafts)
    if not options.quiet:
        console.print(progress.summary_text(options.params), soft_wrap=True)
    if options.as_json and file is not None:
        print_json(progress.summary() | {"errors": num_errors})
    if num_errors and not interruption.is_requested():
        console.print(f"{num_errors} of {len(records)} lines could not be run; see their errors")
    return interruption, num_errors


def _end(interruption: Interruption, num_errors: int) -> None:
    """End the command, once the file of results is closed."""
    interruption.raise_again()
    if num_errors:
        raise SystemExit(1)


def _is_input(output: Path, source: str) -> bool:
    """Return whether ``output`` is the input file, under any name."""
    try:
        status = os.fstat(stdin().fileno()) if source == "-" else Path(source).stat()
        return os.path.samestat(status, output.stat())
    except OSError:
        return False  # one of them is missing, or standard input is not a file


def _write(lines: Sequence[dict[str, Any]], file: ResultFile | None) -> None:
    if file is not None:
        file.write(lines)
    else:
        sys.stdout.buffer.write(b"".join(map(to_bytes, lines)))
        sys.stdout.buffer.flush()


@dataclass(frozen=True, slots=True)
class Checked:
    """A record whose prompt and schedule the bundle accepts."""

    record: Record
    request: Request
    schedule: ExitSchedule


class RecordRunner:
    """Runs records in chunks and yields their lines, results and errors, in the input's order.

    A chunk ends at ``chunk_size`` completions or a few more. Records whose ids are in ``done`` are
    skipped. Neither other records nor resuming change a record's schedule. ``cancelled`` ends the
    running chunk between two steps; finished records are still yielded.
    """

    def __init__(
        self,
        generator: Generator,
        records: Sequence[Record | BadRecord],
        *,
        chunk_size: int,
        done: Set[RecordId] = frozenset(),
        cancelled: Callable[[], bool],
    ) -> None:
        self._generator = generator
        self._chunk_size = chunk_size
        self._cancelled = cancelled
        own = generator.resolve_schedule(None, max_tokens=1)
        self._todo = [
            self._check(record)
            for record in records
            if isinstance(record, BadRecord) or record.record_id not in done
        ]
        good = [item for item in self._todo if isinstance(item, Checked)]
        self.schedules = [item.schedule for item in good] or [own]
        self.num_completions = sum(item.request.params.n for item in good)
        self.drafts = Drafts()  # of the records that have run

    def run(
        self, on_progress: Progress, attempt: Attempt = nullcontext
    ) -> Iterator[list[dict[str, Any]]]:
        """Yield the lines of each chunk; call ``on_progress`` with the deltas of each step.

        Each call of the generator runs within an ``attempt``; if it fails, its records run again.
        """
        for chunk in self._chunks():
            if self._cancelled():
                return
            good = [item for item in chunk if isinstance(item, Checked)]
            outputs = self._generate(good, on_progress, attempt)
            lines = [_line_of(item, outputs) for item in chunk]
            yield [line for line in lines if line is not None]

    def _chunks(self) -> Iterator[list[Checked | BadRecord]]:
        """Yield the records in chunks; a bad record counts as one completion."""
        chunk: list[Checked | BadRecord] = []
        size = 0
        for item in self._todo:
            chunk.append(item)
            size += item.request.params.n if isinstance(item, Checked) else 1
            if size >= self._chunk_size:
                yield chunk
                chunk, size = [], 0
        if chunk:
            yield chunk

    def _check(self, record: Record | BadRecord) -> Checked | BadRecord:
        if isinstance(record, BadRecord):
            return record
        generator = self._generator
        try:
            request = make_request(
                record.line,
                record.prompt,
                record.params,
                generator.model,
                generator.tokenizer,
                "prompt",
            )
        except UsageError as error:
            return BadRecord(record.line, record.record_id, joined(error.problems))
        try:
            schedule = generator.resolve_schedule(record.schedule, max_tokens=request.max_tokens)
        except ScheduleError as error:
            text = f"{error.subject} {joined(error.problems)}"
            return BadRecord(record.line, record.record_id, text)
        return Checked(record, request, schedule)

    def _generate(
        self, items: Sequence[Checked], on_progress: Progress, attempt: Attempt
    ) -> dict[int, RequestOutput | BadRecord]:
        """Return each record's output or error by its input line.

        A row that is too large for the KV memory, or whose logits allow no token, ends its whole
        call, so the call is halved until that row is alone.
        """
        if not items:
            return {}
        try:
            with attempt():
                outputs = self._generator.generate_requests(
                    [item.request for item in items],
                    [item.schedule for item in items],
                    cancelled=self._cancelled,
                    on_progress=on_progress,
                )
        except (CapacityError, LogitsError) as error:
            if len(items) > 1:
                middle = len(items) // 2
                first = self._generate(items[:middle], on_progress, attempt)
                return first | self._generate(items[middle:], on_progress, attempt)
            record = items[0].record
            bad = BadRecord(record.line, record.record_id, joined(error.problems))
            return {record.line: bad}
        for output in outputs:
            self.drafts = self.drafts.plus(output.drafts or Drafts())
        pairs = zip(items, outputs, strict=True)
        return {item.record.line: output for item, output in pairs}


def _line_of(
    item: Checked | BadRecord, outputs: dict[int, RequestOutput | BadRecord]
) -> dict[str, Any] | None:
    """Return the line of one record, or None if it was cancelled."""
    if isinstance(item, BadRecord):
        return item.to_dict()
    output = outputs[item.record.line]
    if isinstance(output, BadRecord):
        return output.to_dict()
    if any(completion.finish_reason == "abort" for completion in output.outputs):
        return None
    return result_line(item.record.record_id, output)
