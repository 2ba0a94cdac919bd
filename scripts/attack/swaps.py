"""Open a bundle that another process keeps replacing: a complete one must run.

    python scripts/attack/swaps.py --count 200

One process alternately publishes two bundles of the same model with different weights at one name,
as ``export --force`` does; forked children open that name and generate. Each must generate the
tokens of the bundle whose digest it reports. A named error counts as sound, because the name may be
replaced faster than a bundle can be read.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import cycle
from pathlib import Path

from harness import run_forked, tiny_bundle

import skipdec.engines.backends.ort  # noqa: F401  (saves each child the import)
from skipdec import Generator, SamplingParams
from skipdec.engines.bundle.place import bundle_place

SECONDS = 60
MEMORY = 3 * 2**29
SOUND = {"first", "second", "error"}


def generate(bundle: Path) -> str:
    """Return the digest of the opened bundle, and its tokens."""
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    with Generator.open(bundle, threads=1, kv_memory=2**26, max_batch_size=1) as generator:
        (result,) = generator.generate([[5, 6, 7]], params)
        return f"{generator.bundle.manifest.digest} {result.outputs[0].token_ids}"


@contextmanager
def swapped(name: Path, bundles: Sequence[Path]) -> Iterator[None]:
    """Publish ``bundles`` at ``name`` alternately, in a process that ends with the block."""
    child = os.fork()
    if child == 0:
        try:
            for bundle in cycle(bundles):
                with bundle_place(name).replaced(force=True) as directory:
                    shutil.copytree(bundle, directory, copy_function=os.link, dirs_exist_ok=True)
        finally:  # it ends only by an error, and must leave the parent's directory alone
            traceback.print_exc()
            os._exit(1)
    try:
        yield
    finally:
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status), "the bundles were not swapped to the end"


def main() -> int:
    """Open bundles while they are swapped, and print mixtures."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--count", type=int, default=200, help="openings")
    arguments = parser.parse_args()
    outcomes: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="attack-") as temporary:
        bundles = [
            tiny_bundle(Path(temporary) / name, seed=seed)
            for seed, name in enumerate(("first", "second"))
        ]
        run = partial(run_forked, seconds=SECONDS, memory=MEMORY)
        owners = {run(partial(generate, bundle)).text: bundle.parent.name for bundle in bundles}
        assert len({text.split(" ", 1)[1] for text in owners}) == 2, "the bundles give equal tokens"
        name = Path(temporary) / "name"
        shutil.copytree(bundles[0], name)
        with swapped(name, bundles):
            for number in range(arguments.count):
                outcome = run(partial(generate, name))
                ran = owners.get(outcome.text, "mixed") if outcome.kind == "value" else outcome.kind
                outcomes[ran] += 1
                if ran not in SOUND:
                    print(f"opening {number}: {ran}\n{outcome.text}", flush=True)
    print(", ".join(f"{kind}: {count}" for kind, count in sorted(outcomes.items())))
    return int(not outcomes.keys() <= SOUND)


if __name__ == "__main__":
    sys.exit(main())
