"""Continue the prompts of JSON lines files with Ray, skipping files that are already finished.

    python examples/ray/continue_files.py restaurants-int8 prompts/*.jsonl --output texts --actors 2

A line is {"prompt": …}; its other fields are kept, "text" and "error" are added. Each actor runs an
engine and takes a file at a time, whose lines run in one batch. The files' names must differ.
``--address auto`` joins a cluster, all of whose machines must see the same paths.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from skipdec import Generator, RunningBatch, SamplingParams, SkipDecError


class FileContinuer:
    """Continues whole files: an actor of Ray."""

    def __init__(self, bundle: str, output: str, threads: int, max_tokens: int) -> None:
        self._generator = Generator.open(bundle, threads=threads, max_batch_size=16)
        self._output = Path(output)
        self._params = SamplingParams(temperature=0, max_tokens=max_tokens)

    def __call__(self, batch: dict[str, list[str]]) -> dict[str, list[str]]:
        """Continue the files in ``item``, each into a file of its name that appears when whole."""
        for source in map(Path, batch["item"]):
            rows = [json.loads(line) for line in source.open()]
            with self._generator.running_batch() as engine:
                numbers = [self._add(engine, row["prompt"]) for row in rows]
                while engine.is_busy:
                    engine.step()
                for row, number in zip(rows, numbers, strict=True):
                    row["text"], row["error"] = self._result(engine, number)
            partial = self._output / f".{source.name}.partial"
            partial.write_text("".join(json.dumps(row) + "\n" for row in rows))
            partial.replace(self._output / source.name)
        return batch

    def _add(self, engine: RunningBatch, prompt: str) -> int | str:
        """Return the number of a request, or why it cannot run, which ends no other."""
        try:
            return engine.add(prompt, self._params)
        except SkipDecError as error:
            return str(error)

    def _result(self, engine: RunningBatch, number: int | str) -> tuple[str, str]:
        """Return the text of a row and its error, of which there is one at most."""
        if isinstance(number, str):
            return "", number
        (output,) = engine.take(number).outputs
        failed = output.finish_reason == "error"
        return ("", str(output.stop_reason)) if failed else (output.text, "")


def main() -> None:
    """Run the job and print the number of files."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("bundle", type=Path)
    parser.add_argument("inputs", type=Path, nargs="+", metavar="FILE.jsonl")
    parser.add_argument("--output", type=Path, required=True, metavar="DIRECTORY")
    parser.add_argument("--actors", type=int, default=2, help="processes, one engine each")
    parser.add_argument("--threads", type=int, default=1, help="per actor")
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--address", help="address of a cluster")
    given = parser.parse_args()
    if len({one.name for one in given.inputs}) < len(given.inputs):
        parser.error("two files have the same name, which their outputs would share")
    given.output.mkdir(parents=True, exist_ok=True)
    missing = [str(one.resolve()) for one in given.inputs if not (given.output / one.name).exists()]
    if missing:
        import ray

        ray.init(address=given.address, include_dashboard=False)
        bundle, output = str(given.bundle.resolve()), str(given.output.resolve())
        ray.data.from_items(missing, override_num_blocks=len(missing)).map_batches(
            FileContinuer,
            fn_constructor_args=[bundle, output, given.threads, given.max_tokens],
            batch_size=1,
            num_cpus=given.threads,
            compute=ray.data.ActorPoolStrategy(size=min(given.actors, len(missing))),
        ).materialize()
    print(f"{len(missing)} of {len(given.inputs)} files written")


if __name__ == "__main__":
    main()
