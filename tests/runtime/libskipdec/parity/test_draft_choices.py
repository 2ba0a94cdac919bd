"""libskipdec's policy chooses the drafters and the numbers of tokens that Python's chooses."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from random import Random

import pytest
from programs import built_program

from skipdec.calib.fitting.lossless.simulation import (
    Costs,
    Lookup,
    OwnNGrams,
    Recorded,
    Source,
    Text,
    simulate,
)
from skipdec.runtime.drafting.config import parse_draft

FLAT = (1.0, 1.04, 1.08, 1.12, 1.16, 1.2, 1.24, 1.28)
STEEP = (1.0, 1.4, 1.6, 1.75, 1.9, 2.1, 2.3, 2.5)
STEP = 0.2  # of layers


def copying_texts(count: int, seed: int) -> list[Text]:
    """Draw texts that repeat phrases of their prompts and of each other, and new tokens."""
    chance = Random(seed)
    phrases = [chance.choices(range(4, 60), k=chance.randint(2, 12)) for _ in range(20)]
    texts = []
    for _ in range(count):
        own = chance.choices(range(60, 90), k=15)
        prompt = (*own, *chance.choice(phrases))
        tokens: list[int] = []
        while len(tokens) < 40:
            start = chance.randrange(10)
            tokens += chance.choice((own[start : start + 6], chance.choice(phrases), [3, 3, 3]))
            tokens.append(chance.randrange(4, 90))
        texts.append(Text(prompt, tuple(tokens), len(tokens)))
    return texts


def recorded(texts: Sequence[Text]) -> Source:
    """Return layers that are right but for every third token id, as the program's are."""
    return Recorded(
        {
            (text.prompt, written): tuple(
                token + (token % 3 == 0) for token in text.tokens[written : written + 7]
            )
            for text in texts
            for written in range(len(text.tokens))
        }
    )


@pytest.mark.parametrize("costs", [FLAT, STEEP], ids=["flat", "steep"])
@pytest.mark.parametrize("draft", ["own", "lookup+own", "own+ends:2", "own+lookup+ends:2"])
def test_both_choose_alike_text_by_text(draft: str, costs: tuple[float, ...]) -> None:
    texts = copying_texts(40, seed=len(draft))
    config = parse_draft(draft)
    assert config is not None

    def source(name: str) -> Source:
        return {"own": lambda: OwnNGrams([]), "lookup": Lookup}.get(name, lambda: recorded(texts))()

    lines = [" ".join(map(str, costs))]
    lines += [
        " ".join(map(str, (len(text.prompt), len(text.tokens), *text.whole))) for text in texts
    ]
    parts = [str(STEP) if part.runs_layers else part.name for part in config.parts]
    written = subprocess.check_output(
        [built_program("draft_choices"), *parts], input="\n".join(lines), text=True
    )
    given = [tuple(map(int, line.split())) for line in written.splitlines()]
    known = Costs(costs, {str(part): STEP for part in config.parts if part.runs_layers})
    for count in (1, 2, 5, 10, 20, 40):
        found = simulate(config, source, texts[:count], known).drafts
        assert given[count - 1] == (found.passes, found.drafted, found.accepted)
    assert found.accepted > 100
