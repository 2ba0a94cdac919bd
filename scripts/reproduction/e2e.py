#!/usr/bin/env python3
"""Reproduce the paper's table on E2E: models tuned at 1x to 6x in several ways.

    python scripts/reproduction/e2e.py --train train.csv --dev dev.csv --work work --jobs 2
    python scripts/reproduction/e2e.py --train train.csv --dev dev.csv --work quick --quick
    python scripts/reproduction/e2e.py --train train.csv --dev dev.csv --work smollm2 \
        --model SmolLM2-135M-Instruct --config scripts/reproduction/smollm2.yaml

Models start with new weights or from the pretrained --model. All results stay in the work
directory. The same command continues where it was stopped, and later runs with more columns,
speed-ups or seeds in --config reuse the results. See docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from reproduction.config import ReproductionConfig
from reproduction.reproduction import reproduce
from reproduction.table import write_results
from skipdec import use_shared_thread_pool
from skipdec.engines.errors import SkipDecError
from skipdec.engines.host.console import stderr_console
from skipdec.engines.host.option_files import OptionFile
from skipdec.engines.host.processor import available_cores
from skipdec.engines.host.progress import ConsoleProgress
from skipdec.runtime.generator import Generator

QUICK: dict[str, Any] = {
    "sizes": "layers=12,width=64,heads=4,positions=256",
    "seeds": (0,),
    "speedups": (2, 4),
    "columns": ("skipdecode", "early-termination"),
    "base_epochs": 0.4,
    "tuning_steps": 100,
    "limit": 100,
}


def main() -> int:
    """Run the reproduction for the arguments; print its tables."""
    config = _config()
    use_shared_thread_pool(available_cores())

    def open_generator(path: Path) -> Generator:
        return Generator.open(
            path, device=config.device, max_batch_size=config.evaluation_batch_size
        )

    with ConsoleProgress() as progress:
        results = reproduce(config, open_generator, progress)
    sys.stdout.write(write_results(config, results))
    return 0


def _config() -> ReproductionConfig:
    """Combine defaults, those of --quick, and the given options."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    given = parser.add_argument
    given("--train", type=Path, required=True, metavar="CSV")
    given("--dev", type=Path, required=True, metavar="CSV")
    given("--work", type=Path, required=True, metavar="DIR")
    given(
        "--quick",
        action="store_true",
        help="a small table in minutes, with models too weak to compare",
    )
    given(
        "--model",
        type=Path,
        metavar="DIR",
        help="a pretrained checkpoint, to tune at full depth first",
    )
    given("--config", metavar="FILE", help="more fields of ReproductionConfig, in YAML or TOML")
    given("--jobs", type=int, help="models to tune at once (1)")
    arguments = vars(parser.parse_args())
    quick = QUICK if arguments.pop("quick") else {}
    file = arguments.pop("config")
    fields = OptionFile.read(file).values if file else {}
    typed = {name: value for name, value in arguments.items() if value is not None}
    return ReproductionConfig(**{**quick, **fields, **typed})


if __name__ == "__main__":
    try:
        sys.exit(main())
    except SkipDecError as error:
        stderr_console().print(str(error), markup=False, soft_wrap=True)
        sys.exit(error.exit_code)
