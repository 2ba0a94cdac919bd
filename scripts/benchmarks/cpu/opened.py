"""Open a bundle and generate 8 tokens; print seconds to open and resident bytes as JSON.

python scripts/benchmarks/cpu/opened.py BUNDLE THREADS graphs
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from time import perf_counter

from skipdec import Generator, SamplingParams, use_shared_thread_pool


def main(bundle: str, threads: str, verify: str) -> None:
    """Print ``{"open_seconds": 0.31, "resident": 1400000000}``, mapped weights included."""
    use_shared_thread_pool(int(threads))
    start = perf_counter()
    with Generator.open(bundle, verify="full" if verify == "full" else "graphs") as generator:
        seconds = perf_counter() - start
        params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
        generator.generate([[4] * 32], params, schedule="full")
        status = Path("/proc/self/status").read_text()
    (kibibytes,) = re.findall(r"^VmRSS:\s+(\d+) kB$", status, re.MULTILINE)
    print(json.dumps({"open_seconds": seconds, "resident": 1024 * int(kibibytes)}))


if __name__ == "__main__":
    main(*sys.argv[1:])
