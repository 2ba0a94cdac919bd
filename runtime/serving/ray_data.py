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
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from ...engines.checking import MemorySize, ValidatedConfig
from ...engines.documents import parse_json
from ...engines.errors import SkipDecError, UsageError
from ...engines.host.extras import require_extra
from ...engines.writing import naming_file
from ..batches.prompts import Prompt
from ..tokens.outputs import RequestOutput
from ..tokens.sampling import SamplingParams

_SUFFIX = ".partial"  # of an output that is being written
_NO_RESULT: dict[str, Any] = {
    "text": "", "token_ids": [], "layers_per_token": [], "finish_reason": "", "schedule": "",
}  # fmt: skip


class PredictorConfig(ValidatedConfig):
    """What each actor opens, and how it continues prompts; see `Generator.open`."""

    bundle: Path = Field(description="its directory, which every machine must have")
    params: SamplingParams = SamplingParams()
    schedule: str | None = Field(default=None, description="(the bundle's own)")
    prompt_column: str = Field(default="prompt", description="holds texts, or lists of token ids")
    threads: int = Field(default=1, ge=1, description="of an actor; give Ray num_cpus as many")
    max_batch_size: int = Field(default=16, ge=1, description="rows of an actor at once")
    kv_memory: MemorySize | None = Field(default=None, description="of an actor's KV caches")
    raw_prompts: bool = Field(default=False, description="without the template of the model")

    def _problems(self) -> Iterator[str]:
        if self.params.n != 1:
            yield f"`params` has n {self.params.n}; allowed: 1, a row a text"


class SkipDecPredictor:
    """Continues a batch of rows: for `ray.data.Dataset.map_batches`, an actor an instance.

    All rows of a batch run in one running batch of at most max_batch_size, so give it some times
    as many (batch_size): slots are empty only at its end. An actor is a process, which gets one
    thread pool. It needs no Ray, and belongs to the thread that made it.
    """

    def __init__(self, config: PredictorConfig) -> None:
        """Open the bundle. Raises what `Generator.open` does."""
        from ...engines.backends import ort
        from ..generator import Generator

        self._config = config
        ort.use_shared_thread_pool(config.threads)
        self._generator = Generator.open(
            config.bundle,
            schedule=config.schedule,
            max_batch_size=config.max_batch_size,
            kv_memory=config.kv_memory,
            raw_prompts=config.raw_prompts,
        )

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """All columns of ``batch``, and those of the results, an entry a row.

        ``text``, ``token_ids``, ``layers_per_token``, ``finish_reason`` and ``schedule``: as in
        `CompletionOutput`; ``error``: why a row could not run, which ends no other; else "".

        Raises UsageError if there is no column of prompts.
        """
        name = self._config.prompt_column
        if name not in batch:
            columns = ", ".join(batch)
            raise UsageError("prompt_column", f"is {name!r}; the rows have: {columns}")
        results = self.continued([_prompt(value) for value in batch[name]])
        found = {key: [result[key] for result in results] for key in (*_NO_RESULT, "error")}
        return {**batch, **found}

    def continued(self, prompts: Sequence[Prompt]) -> list[dict[str, Any]]:
        """A dict of the columns above for each prompt."""
        with self._generator.engine() as engine:
            numbers: list[int | SkipDecError] = []
            for prompt in prompts:
                try:
                    numbers.append(engine.add(prompt, self._config.params))
                except SkipDecError as error:
                    numbers.append(error)
            while engine.is_busy:
                engine.step()
            return [
                _NO_RESULT | {"error": str(one)}
                if isinstance(one, SkipDecError)
                else _result(engine.take(one))
                for one in numbers
            ]

    def close(self) -> None:
        """Free all; an actor's end does as well."""
        self._generator.close()


def continue_files(
    inputs: Sequence[Path], output: Path, config: PredictorConfig, *, actors: int
) -> list[Path]:
    """Continue the prompts of files of JSON lines, each into a file of its name in ``output``.

    A line is an object with config.prompt_column; the line that comes out holds its fields and the
    predictor's. Files whose output is there are left alone, so that a job that was stopped goes on
    where it was: an output gets its name when it is whole. ``actors`` of config.threads CPUs each
    take a file at a time, whose lines run together; of some hundred lines no slot is empty for
    long. Returns what was written. All machines must see the files under the same paths.

    Raises UsageError for inputs of one name, MissingExtraError without Ray, and what an actor fails
    with.
    """
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
        _FileContinuer,
        fn_constructor_args=[config],
        batch_size=1,
        num_cpus=config.threads,
        compute=ray.data.ActorPoolStrategy(size=min(actors, len(missing))),
    )
    return [Path(row["output"]) for row in written.take_all()]


class _FileContinuer:
    """An actor that continues whole files."""

    def __init__(self, config: PredictorConfig) -> None:
        self._predictor = SkipDecPredictor(config)
        self._column = config.prompt_column

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        for source, target in zip(batch["input"], batch["output"], strict=True):
            self._continue(Path(source), Path(target))
        return dict(batch)

    def _continue(self, source: Path, target: Path) -> None:
        rows = [
            self._row(number, line)
            for number, line in enumerate(source.read_text(encoding="utf-8").split("\n"), start=1)
            if line.strip()
        ]
        good = [row for row in rows if "error" not in row]
        results = iter(self._predictor.continued([row[self._column] for row in good]))
        partial = target.with_name(f".{target.name}{_SUFFIX}")
        with naming_file(partial), partial.open("w", encoding="utf-8") as file:
            for row in rows:
                line = row if "error" in row else row | next(results)
                file.write(json.dumps(line, ensure_ascii=False) + "\n")
            file.flush()
            os.fsync(file.fileno())
        partial.replace(target)

    def _row(self, number: int, line: str) -> dict[str, Any]:
        """A line's fields; of a bad one its number and what is wrong."""
        try:
            row = parse_json(line, UsageError, subject=f"line {number}")
        except UsageError as error:
            return {"line": number, "error": str(error)}
        if not isinstance(row, dict) or self._column not in row:
            return {"line": number, "error": f"is no object with {self._column!r}"}
        row.pop("error", None)
        return row


def _prompt(value: Any) -> Prompt:  # noqa: ANN401  (an entry of a column)
    """A text, or token ids."""
    return value if isinstance(value, str) else [int(token) for token in np.asarray(value)]


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
