"""``skipdec generate --input``: lines of JSON in, lines of JSON out, in the same order."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..engines.errors import UsageError
from ..engines.host.console import print_json, stderr_console
from .generate_options import GenerateOptions
from .generation_progress import GenerationProgress
from .interruption import Interruption
from .jsonl import BadRecord, Record, RecordId, read_records, to_bytes
from .record_runner import BATCHES_PER_CHUNK, RecordRunner
from .result_file import ResultFile

Records = Sequence[Record | BadRecord]


def run_lines(options: GenerateOptions) -> None:
    """Run all records that have no result yet; exit with 1 if some of them were bad.

    Ctrl-C writes what is finished and exits with 130.
    """
    console = stderr_console()
    records = _read(options)
    file = _result_file(options, records)
    num_done = 0 if file is None else len(file.done)
    if num_done and not options.quiet:
        console.print(f"{num_done} of {len(records)} lines are done already")
    if num_done == len(records):
        with _opened(file):  # an empty input gives an empty file
            return
    _run(options, records, file)


def _run(options: GenerateOptions, records: Records, file: ResultFile | None) -> None:
    console = stderr_console()
    num_errors = 0
    with options.open_generator() as generator, Interruption() as interruption:
        runner = RecordRunner(
            generator,
            records,
            options.schedule,
            chunk_size=BATCHES_PER_CHUNK * options.max_batch_size,
            done=frozenset() if file is None else file.done,
            cancelled=interruption.is_requested,
        )
        with (
            _opened(file),
            GenerationProgress(
                console, runner.schedule, runner.num_completions, shown=not options.quiet
            ) as progress,
        ):
            for lines in runner.run(progress.update):
                num_errors += sum("error" in line for line in lines)
                _write(lines, file)
    if not options.quiet:
        console.print(progress.summary_text(), soft_wrap=True)
    if options.as_json and file is not None:
        print_json(progress.summary() | {"errors": num_errors})
    if interruption.requested:
        raise KeyboardInterrupt
    if num_errors:
        console.print(f"{num_errors} of {len(records)} lines could not be run; see their errors")
        raise SystemExit(1)


def _read(options: GenerateOptions) -> Records:
    assert options.input is not None
    if options.input == "-":
        return list(read_records(sys.stdin.buffer, options.params))
    path = Path(options.input)
    if not path.is_file():
        raise UsageError("--input", f"{path} is no file; give JSON lines, or - for stdin")
    with path.open("rb") as lines:
        return list(read_records(lines, options.params))


def _result_file(options: GenerateOptions, records: Records) -> ResultFile | None:
    """Return the file to write, or None for stdout."""
    if options.output is None:
        return None
    line_of: dict[RecordId, int] = {
        record.record_id: record.line for record in records if isinstance(record, Record)
    }
    return ResultFile(options.output, line_of, resume=options.resume, force=options.force)


@contextmanager
def _opened(file: ResultFile | None) -> Iterator[None]:
    if file is None:
        yield
    else:
        with file:
            yield


def _write(lines: Sequence[dict[str, Any]], file: ResultFile | None) -> None:
    if file is not None:
        file.write(lines)
    else:
        sys.stdout.buffer.write(b"".join(map(to_bytes, lines)))
        sys.stdout.buffer.flush()
