"""Measure drafts beside full depth, part by part, each figure beside its goal.

    python scripts/bench.py goals --work /tmp/drafts --part export
    python scripts/bench.py goals --work /tmp/drafts --part restaurants --data dev.csv

Parts: export makes the bundles (opt-1.3b and opt-125m with random weights, examples/restaurants);
restaurants are whole calls on real texts, passes what several tokens of a row cost, large and small
forced drafts on opt-1.3b and opt-125m, batches those of 4 and 8 rows, never-worse drafts that
seldom hold. Prints Markdown, a row per goal; each part takes up to six minutes on two cores. Run
it on a quiet machine.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.process import skipdec_command
from skipdec import Generator
from skipdec.engines.host.processor import available_cores, processor_name
from skipdec.runtime.measuring.passes import measure_pass_costs
from skipdec.runtime.measuring.prompts import random_prompts

_ROOT = Path(__file__).parents[3]
_PAST = 64  # positions before the first pass that is measured


@dataclass(frozen=True)
class Goal:
    """One figure: a ratio, and the least or the most that it should be."""

    name: str
    value: float
    bound: float
    is_least: bool = True

    @property
    def is_met(self) -> bool:
        """True if the figure is on the right side of its bound."""
        return self.value >= self.bound if self.is_least else self.value <= self.bound

    def __str__(self) -> str:
        sign = "≥" if self.is_least else "≤"
        met = "yes" if self.is_met else "no"
        return f"| {self.name} | {self.value:.2f} | {sign} {self.bound:.2f} | {met} |"


def main() -> int:
    """Print the goals of a part; 0 whether they are met or not."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--work", type=Path, required=True, help="where the bundles are")
    parser.add_argument("--part", choices=PARTS, action="append", help="repeat; default: all")
    parser.add_argument("--data", type=Path, help="E2E's development set, .csv")
    parser.add_argument("--limit", type=int, default=150, help="prompts of --data")
    parser.add_argument("--threads", type=int, default=available_cores())
    parser.add_argument("--seconds", type=float, default=60)
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    print(f"{arguments.threads} threads of {processor_name()}\n", flush=True)
    for part in arguments.part or PARTS:
        print(f"**{part}**\n\n| figure | ratio | goal | met |\n|---|---|---|---|", flush=True)
        for goal in PARTS[part](arguments):
            print(goal, flush=True)
        print(flush=True)
    return 0


def _export(arguments: argparse.Namespace) -> Iterator[Goal]:
    """Export the bundles that are not there yet."""
    models = {
        "restaurants": str(_ROOT / "examples/restaurants"),
        "opt-125m": "opt-125m",
        "opt-1.3b": "opt-1.3b",
    }
    for name, model in models.items():
        bundle = arguments.work / name
        if bundle.exists():
            continue
        options = ["--quantize", "int8", "--no-verify", "--quiet", "--output", str(bundle)]
        if name != "restaurants":
            options += ["--load-format", "dummy"]
        command = skipdec_command("export", model, *options)
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    yield from ()


def _restaurants(arguments: argparse.Namespace) -> Iterator[Goal]:
    data, preset = arguments.data, ["--preset", "e2e"]
    if data is None:
        data, preset = _ROOT / "examples/restaurants.jsonl", []
    goals = {"0": {"own+ends:3": 1.7, "ends:3": 1.5, "own": 1.5}, "1": {"own+ends:3": 1.15}}
    for temperature, drafts in goals.items():
        options = ["--data", str(data), *preset, "--batch-size", "1", "--schedule", "full"]
        options += ["--limit", str(arguments.limit), "--temperature", temperature]
        options += ["--resamples", "1", *(f"--draft={draft}" for draft in drafts)]
        found = _json("evaluate", arguments, "restaurants", *options)["drafts"]
        for row in found:
            equal = f"{row['num_equal']} of {row['num_texts']} equal"
            name = f"restaurants, temperature {temperature}, {row['name']}, {equal}"
            yield Goal(name, row["gain"] or 0.0, drafts[row["name"]])


def _passes(arguments: argparse.Namespace) -> Iterator[Goal]:
    for name in ("opt-1.3b", "opt-125m"):
        with Generator.open(
            arguments.work / name, threads=arguments.threads, weights="copied"
        ) as generator:
            (prompt,) = random_prompts(
                generator.model.vocab_size, batch_size=1, prompt_length=_PAST, seed=0
            )
            costs = measure_pass_costs(generator, prompt, 64)
        for tokens, bound in ((2, 1.15), (5, 1.30)):
            figure = f"{name}, a pass of {tokens} tokens ÷ a step"
            yield Goal(figure, costs[tokens - 1], bound, is_least=False)


def _large(arguments: argparse.Namespace) -> Iterator[Goal]:
    yield from _forced(arguments, "opt-1.3b", "1", {("ends:3", 0.9): 2.0, ("own", 0.8): 2.6})


def _small(arguments: argparse.Namespace) -> Iterator[Goal]:
    yield from _forced(arguments, "opt-125m", "1", {("ends:3", 0.9): 1.4, ("own", 0.8): 2.3})


def _batches(arguments: argparse.Namespace) -> Iterator[Goal]:
    yield from _forced(arguments, "opt-1.3b", "4", {("own", 0.9): 1.6})
    yield from _forced(arguments, "opt-1.3b", "8", {("own", 0.9): 1.2})


def _never_worse(arguments: argparse.Namespace) -> Iterator[Goal]:
    goals = {(draft, share): 0.97 for draft in ("own", "ends:3") for share in (0.0, 0.3)}
    yield from _forced(arguments, "opt-125m", "1,4,8", goals)


def _forced(
    arguments: argparse.Namespace,
    name: str,
    batch_sizes: str,
    goals: Mapping[tuple[str, float], float],
) -> Iterator[Goal]:
    """Measure drafts that are made right with a probability: (draft, probability) → least gain."""
    for share in dict.fromkeys(share for _, share in goals):
        drafts = {draft: least for (draft, other), least in goals.items() if other == share}
        options = ["-b", batch_sizes, "--prompt-len", str(_PAST), "--gen-len", "64"]
        options += ["--seconds", str(arguments.seconds), "--accept", str(share)]
        options += [f"--draft={draft}" for draft in drafts]
        for row in _json("bench", arguments, name, *options)["measurements"]:
            if row["draft"] != "off":
                figure = (
                    f"{name}, batch {row['batch_size']}, {row['draft']}, forced {share:g}, "
                    f"{row['tokens_per_pass']:.1f} tokens per pass"
                )
                yield Goal(figure, row["gain"] or 0.0, drafts[row["draft"]])


def _json(command: str, arguments: argparse.Namespace, name: str, *options: str) -> dict[str, Any]:
    bundle = str(arguments.work / name)
    common = ["--threads", str(arguments.threads), "--weights", "copied", "--json"]
    line = skipdec_command(command, bundle, *options, *common, "--quiet")
    found: dict[str, Any] = json.loads(subprocess.check_output(line, text=True))
    return found


PARTS: Mapping[str, Callable[[argparse.Namespace], Iterator[Goal]]] = {
    "export": _export,
    "restaurants": _restaurants,
    "passes": _passes,
    "large": _large,
    "small": _small,
    "batches": _batches,
    "never-worse": _never_worse,
}
