"""Many prompts on many machines with Ray Data: what its actors run, and files that are continued.

>>> prompts = ray.data.read_json("prompts")
>>> texts = prompts.map_batches(
...     SkipDecPredictor,
...     fn_constructor_args=[PredictorConfig(bundle="restaurants-int8", threads=2)],
...     batch_size=256,
...     num_cpus=2,
...     compute=ray.data.ActorPoolStrategy(size=4),
... )

Ray itself is loaded by `continue_files` alone.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field

from ...engines.checking import plain
from ...engines.documents import naming_file, open_regular
from ...engines.errors import SkipDecError, UsageError, did_you_mean
from ...engines.host.installation import require_extra
from ..opening import OpenOptions
from ..requests.records import (
    BadRecord,
    PromptLine,
    Record,
    read_record,
    read_records,
    split_lines,
)
from ..tokens.outputs import RequestOutput
from ..tokens.sampling import SamplingParams

if TYPE_CHECKING:
    from ..scheduling.running_batch import RunningBatch

_SUFFIX = ".partial"  # of an output that is being written
_NO_RESULT: dict[str, Any] = {
    "text": "", "token_ids": [], "layers_per_token": [], "finish_reason": "", "schedule": "",
}  # fmt: skip
_RESULTS = (*_NO_RESULT, "error")
_READ = PromptLine.model_fields.keys() - {"id", "prompt"}  # of a row's columns


class PredictorConfig(OpenOptions):
    """The options with which each actor opens its bundle, and how it continues prompts.

    ``params`` and ``schedule`` are for rows that have no columns, and lines that have no fields, of
    these names. An actor has one thread unless ``threads`` says more; its machine is not the one
    that makes this configuration, so their number is not compared with the processors here.
    """

    bundle: Path = Field(description="its directory, which every machine must have")
    params: SamplingParams = SamplingParams()
    prompt_column: str = Field(
        default="prompt", description="of rows; holds texts, or lists of token ids"
    )
    max_batch_size: int = Field(default=16, ge=1, description="rows of an actor at once")

    def _problems(self) -> Iterator[str]:
        yield from (f"`params` has {problem}" for problem in _row_problems(self.params))
        yield from self._draft_problems()

    @property
    def process_threads(self) -> int:
        """The size of an actor's thread pool, and the CPUs that Ray reserves for it."""
        return self.threads or 1


class SkipDecPredictor:
    """Continues a batch of rows: for `ray.data.Dataset.map_batches`, an actor an instance.

    All rows of a batch run in one running batch of at most max_batch_size, so give it some times
    as many (batch_size): slots are empty only at its end. An actor is a process, which gets one
    thread pool. It needs no Ray, and belongs to the thread that made it.
    """

    def __init__(self, config: PredictorConfig) -> None:
        """Open the bundle. Raises what `Generator.open` does."""
        from ..generator import Generator

        self._config = config
        self._generator = Generator.open_with_shared_pool(config.bundle, config)

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Return all columns of ``batch`` and those of the results, an entry a row.

        Columns that are named as fields of `PromptLine` say how a row is continued; where they have
        no value, None or NaN, the configuration's holds. Other columns are kept as they are.

        ``text``, ``token_ids``, ``layers_per_token``, ``finish_reason`` and ``schedule``: as in
        `CompletionOutput`; ``error``: why a row could not run, which ends no other; else "".

        Raises UsageError if there is no column of prompts, and for a column that is nearly named
        as a field.
        """
        self._check_columns(list(map(str, batch)))
        results = self.continued(list(self._records(batch)))
        return {**batch, **{key: [result[key] for result in results] for key in _RESULTS}}

    def continued(self, records: Sequence[Record | BadRecord]) -> list[dict[str, Any]]:
        """Return a dict of the columns above for each record."""
        with self._generator.running_batch() as batch:
            numbers = [_add(batch, record) for record in records]
            while batch.is_busy:
                batch.step()
            return [
                _NO_RESULT | {"error": one} if isinstance(one, str) else _result(batch.take(one))
                for one in numbers
            ]

    def _check_columns(self, columns: Sequence[str]) -> None:
        """Raise UsageError unless each column is a field, or can't be meant as one."""
        name = self._config.prompt_column
        if name not in columns:
            raise UsageError("prompt_column", f"is {name!r}; the rows have: {', '.join(columns)}")
        known = {name, "id", *_READ, *_RESULTS}
        misspelt = [
            f"column {column!r} is unknown; {meant}rename it, or drop it (Dataset.drop_columns)"
            for column in columns
            if column not in known
            and (meant := did_you_mean(column, sorted(_READ), among=len(columns)))
        ]
        if misspelt:
            raise UsageError("rows", *misspelt)

    def _records(self, batch: Mapping[str, Any]) -> Iterator[Record | BadRecord]:
        """Read each row of ``batch``."""
        name = self._config.prompt_column
        columns = [column for column in batch if column in _READ - {name}]
        for place, prompt in enumerate(batch[name], start=1):
            own = {column: _value(batch[column][place - 1]) for column in columns}
            given = {column: value for column, value in own.items() if value is not None}
            yield read_record(place, {"prompt": plain(prompt)} | given, self._config.params)

    def close(self) -> None:
        """Free all; an actor's end does as well."""
        self._generator.close()


def continue_files(
    inputs: Sequence[Path], output: Path, config: PredictorConfig, *, actors: int
) -> list[Path]:
    """Continue the prompts of files of JSON lines, each into a file of its name in ``output``.

    A line has the fields of `PromptLine`; the line that comes out holds them and the predictor's,
    that of a bad line ``{"id", "line", "error"}``. Files whose output is there are left alone, so
    that a job that was stopped goes on where it was: an output gets its name when it is whole.
    ``actors`` of config.process_threads CPUs each take a file at a time, whose lines run together;
    of some hundred lines no slot is empty for long. Returns what was written.
    All machines must see the files under the same paths.

    Raises UsageError for inputs of one name and for another prompt_column, MissingExtraError
    without Ray, and what an actor fails with.
    """
    if config.prompt_column != "prompt":
        raise UsageError(
            "prompt_column", f"is {config.prompt_column!r}; a line of a file has its 'prompt'"
        )
    require_extra("ray", "continue_files")
    import ray
    import ray.data

    names = [path.name for path in inputs]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise UsageError(
            "inputs", f"hold {', '.join(twice)} twice; outputs are named as inputs are"
        )
    output.mkdir(parents=True, exist_ok=True)
    missing = [path for path in inputs if not (output / path.name).exists()]
    if not missing:
        return []
    rows = [{"input": str(path), "output": str(output / path.name)} for path in missing]
    written = ray.data.from_items(rows, override_num_blocks=len(rows)).map_batches(
        FileContinuer,
        fn_constructor_args=[config],
        batch_size=1,
        num_cpus=config.process_threads,
        compute=ray.data.ActorPoolStrategy(size=min(actors, len(missing))),
    )
    return [Path(row["output"]) for row in written.take_all()]


class FileContinuer(SkipDecPredictor):
    """Continues whole files: an actor of `continue_files`."""

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Continue the files in ``input``, each into its file in ``output``."""
        for source, target in zip(batch["input"], batch["output"], strict=True):
            self._continue(Path(source), Path(target))
        return dict(batch)

    def _continue(self, source: Path, target: Path) -> None:
        with open_regular(source) as file:
            records = list(read_records(split_lines(file), self._config.params))
        results = self.continued(records)
        partial = target.with_name(f".{target.name}{_SUFFIX}")
        with naming_file(partial), partial.open("w", encoding="utf-8") as file:
            for record, result in zip(records, results, strict=True):
                if isinstance(record, BadRecord):
                    line = record.to_dict()
                else:
                    line = {**record.fields, **result}
                file.write(json.dumps(line, ensure_ascii=False) + "\n")
            file.flush()
            os.fsync(file.fileno())
        partial.replace(target)


def _value(entry: Any) -> Any:  # noqa: ANN401  (an entry of a column)
    """Return a value as JSON has it; None for NaN, which stands for none where others have one.

    Columns of integers that have such gaps are of floats, so those that are whole are integers.
    """
    value = plain(entry)
    if not isinstance(value, float):
        return value
    if math.isnan(value):
        return None
    return int(value) if value.is_integer() else value


def _add(batch: RunningBatch, record: Record | BadRecord) -> int | str:
    """Return the number of a record's request, or what is wrong with it."""
    if isinstance(record, BadRecord):
        return record.error
    try:
        if problems := list(_row_problems(record.params)):
            raise UsageError("row", *problems)
        return batch.add(record.prompt, record.params, schedule=record.schedule)
    except SkipDecError as error:
        return str(error)


def _row_problems(params: SamplingParams) -> Iterator[str]:
    """Name what a row has no room for."""
    if params.n != 1:
        yield f"n {params.n}; allowed: 1, a text a row"
    if params.logprobs is not None:
        yield f"logprobs {params.logprobs}; allowed: none, a row has no column for them"


def _result(output: RequestOutput) -> dict[str, Any]:
    (completion,) = output.outputs
    failed = completion.finish_reason == "error"
    return {
        "text": completion.text,
        "token_ids": list(completion.token_ids),
        "layers_per_token": list(completion.layers_per_token),
        "finish_reason": completion.finish_reason,
        "schedule": output.schedule,
        "error": str(completion.stop_reason) if failed else "",
    }
