"""Complete the prompts of JSON lines files with Ray, skipping files that are already finished.

    python examples/ray/continue_files.py restaurants-int8 prompts/*.jsonl --output texts --actors 2

Lines have the format of ``skipdec generate --input``, {"prompt": …, "max_tokens": …}; output lines
add the text. Restarted after a stop or a crash, it processes the files whose output is missing.
``--address auto`` joins a cluster, all of whose machines must see the same paths; without it Ray
runs on this machine only.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from time import perf_counter

import ray

from skipdec import SamplingParams
from skipdec.runtime.serving.ray_data import PredictorConfig, continue_files


def main() -> None:
    """Run the job and print the number of files and the time."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("bundle", type=Path)
    parser.add_argument("inputs", type=Path, nargs="+", metavar="FILE.jsonl")
    parser.add_argument("--output", type=Path, required=True, metavar="DIRECTORY")
    parser.add_argument("--actors", type=int, default=2, help="processes, one engine each")
    parser.add_argument("--threads", type=int, default=1, help="per actor")
    parser.add_argument("--schedule", help="default: the bundle's own")
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--address", help="address of a cluster")
    arguments = parser.parse_args()
    config = PredictorConfig(
        bundle=arguments.bundle.resolve(),
        params=SamplingParams(max_tokens=arguments.max_tokens, temperature=arguments.temperature),
        schedule=arguments.schedule,
        threads=arguments.threads,
    )
    ray.init(address=arguments.address, include_dashboard=False)
    start = perf_counter()
    inputs = [path.resolve() for path in arguments.inputs]
    written = continue_files(inputs, arguments.output.resolve(), config, actors=arguments.actors)
    print(f"{len(written)} of {len(inputs)} files written in {perf_counter() - start:.1f} s")


if __name__ == "__main__":
    main()
