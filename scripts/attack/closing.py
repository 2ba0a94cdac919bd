"""Close generators at random moments while threads generate, stream and score with them.

    python scripts/attack/closing.py --count 200

Each thread must soon end in ClosedError, and the process must survive: a generator that frees
engines during a step would corrupt the heap and abort the process.
"""

from __future__ import annotations

import argparse
import logging
import random
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

from harness import tiny_bundle

from skipdec import Generator, SamplingParams
from skipdec.engines.errors import ClosedError, SkipDecError

_THREADS = 3  # one holds the generator at a time, the others get a busy error
_LONGEST_WAIT = 0.1  # seconds before a generator is closed
_PATIENCE = 60.0  # seconds for all threads to end
_SCHEDULES = ("full", "2x:horizon=16", "2x:horizon=16,prompt=decay")


def main() -> int:
    """Close generators and print any other way in which threads ended."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--count", type=int, default=200, help="generators to close")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)  # each model was not tuned to skip
    chance = random.Random(arguments.seed)
    with tempfile.TemporaryDirectory(prefix="attack-") as temporary:
        bundle = tiny_bundle(Path(temporary) / "tiny")
        failures = sum(not _close_under_load(bundle, chance) for _ in range(arguments.count))
    print(f"{arguments.count} generators closed under load, {failures} failures")
    return int(failures > 0)


def _close_under_load(bundle: Path, chance: random.Random) -> bool:
    """Return True if all threads ended as required."""
    generator = Generator.open(bundle, threads=1)
    with ThreadPoolExecutor(_THREADS) as threads:
        calls = [
            threads.submit(_use, generator, random.Random(chance.random())) for _ in range(_THREADS)
        ]
        time.sleep(chance.uniform(0, _LONGEST_WAIT))
        generator.close()
        unfinished = wait(calls, _PATIENCE).not_done
    errors = [call.exception() for call in calls if call not in unfinished]
    for error in errors:
        if not isinstance(error, ClosedError):
            print(f"a thread ended in {error!r}")
    return not unfinished and all(isinstance(error, ClosedError) for error in errors)


def _use(generator: Generator, chance: random.Random) -> None:
    while True:
        prompts = [[5] * chance.randint(1, 20) for _ in range(chance.randint(1, 12))]
        params = SamplingParams(n=chance.randint(1, 3), max_tokens=20, ignore_eos=True)
        schedule = chance.choice(_SCHEDULES)
        try:
            match chance.choice(("generate", "stream", "score")):
                case "generate":
                    generator.generate(prompts, params, schedule=schedule)
                case "stream":
                    next(generator.stream(prompts, params, schedule=schedule))
                case "score":
                    generator.score(prompts, prompts, schedule=schedule)
        except SkipDecError as error:
            if "is busy" not in str(error):
                raise


if __name__ == "__main__":
    sys.exit(main())
