"""Write the example data set, examples/train.jsonl and dev.jsonl, with sentences of our own.

    python scripts/data/example_rows.py [FOLDER]

Its places are invented, in the notation of examples/restaurants, and described by the templates
below. Every run writes equal files. No prompt is in both files. Each prompt has one description in
train.jsonl, and every template's in dev.jsonl, as references.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator
from itertools import product
from pathlib import Path

NAMES = ("Copper Kettle", "Green Door", "Harbour House", "Mill Garden", "Red Lantern", "Old Barn")
KINDS = ("restaurant", "pub", "coffee shop")
FOODS = ("Italian", "Indian", "Chinese", "English", "French")
PRICES = {"cheap": "low prices", "moderate": "fair prices", "high": "high prices"}
AREAS = {"riverside": "by the river", "city centre": "in the middle of the city"}
TEMPLATES = (
    "{name} is a {kind} {place}. It serves {food} food at {price}.",
    "For {food} food at {price}, visit the {kind} {name} {place}.",
    "There is a {kind} called {name} {place}, with {food} food at {price}.",
)
NUM_TRAIN, NUM_DEV = 384, 64  # prompts; fewer teach the templates but not copying every value


def rows() -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield each meaning representation with its descriptions, one per template."""
    for name, kind, food, price, area in product(NAMES, KINDS, FOODS, PRICES, AREAS):
        prompt = f"name[{name}], eatType[{kind}], food[{food}], priceRange[{price}], area[{area}]"
        values = {"name": name, "kind": kind, "food": food}
        values |= {"price": PRICES[price], "place": AREAS[area]}
        yield prompt, tuple(template.format(**values) for template in TEMPLATES)


def main(folder: Path) -> None:
    """Draw the rows of both files and write them to ``folder``."""
    draw = random.Random(0)
    drawn = draw.sample(list(rows()), NUM_TRAIN + NUM_DEV)
    files = {
        "train.jsonl": (drawn[:NUM_TRAIN], 1),
        "dev.jsonl": (drawn[NUM_TRAIN:], len(TEMPLATES)),
    }
    for name, (chosen, count) in files.items():
        with (folder / name).open("w", encoding="utf-8", newline="\n") as file:
            for prompt, descriptions in chosen:
                for completion in draw.sample(descriptions, count):
                    row = {"prompt": prompt, "completion": completion}
                    file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", nargs="?", type=Path, default=Path("examples"))
    main(parser.parse_args().folder)
