"""libskipdec's policy chooses the same drafters and numbers of draft tokens as Python's."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

import pytest
from programs import built_program

from skipdec.runtime.drafting.acceptance import LAYER_PRIORS, UNKNOWN, Guesses, RowResults
from skipdec.runtime.drafting.memory import DraftMemory
from skipdec.runtime.drafting.ngrams import LOOKUP_PRIORS, OWN_PRIORS, LookupIndex
from skipdec.runtime.drafting.policy import Offer

FLAT = (1.0, 1.04, 1.08, 1.12, 1.16, 1.2, 1.24, 1.28)
STEEP = (1.0, 1.4, 1.6, 1.75, 1.9, 2.1, 2.3, 2.5)
STEP = 0.2  # seconds of a draft step that runs layers
MEASURED = 15  # how often the policy is given each cost
PRIORS = {"own": OWN_PRIORS, "lookup": LOOKUP_PRIORS}


@dataclass(frozen=True)
class Text:
    """A prompt and its completion at full depth."""

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]


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
        texts.append(Text(prompt, tuple(tokens)))
    return texts


class Replay:
    """Drafts known texts with the policy, as the program ``draft_choices`` does."""

    def __init__(self, parts: Sequence[str], costs: Sequence[float]) -> None:
        memory = DraftMemory()
        self._costs, self._known, self._table = costs, memory.costs, memory.tables.shared
        self._steps = {part: 0.0 if part in PRIORS else STEP for part in parts}
        sources = [
            memory.source(part, PRIORS.get(part, LAYER_PRIORS), step)
            for part, step in self._steps.items()
        ]
        self._policy = memory.policy(sources)
        for _ in range(MEASURED):
            for tokens, seconds in enumerate(costs, 1):
                self._known.add_pass(1, tokens, seconds)
            for part, step in self._steps.items():
                if step:
                    self._known.add_draft(part, 1, step)
        self._known.add_pass(1, 1, costs[0])
        self.passes = self.drafted = self.accepted = 0

    def run(self, text: Text) -> None:
        """Run passes to the end of a text."""
        index = LookupIndex()
        results = [RowResults() for _ in self._steps]
        tokens = [*text.prompt, text.tokens[0]]
        self._table.count(tokens, len(text.prompt))
        written = 1
        while written < len(text.tokens):
            accepted = self._pass(tokens, text.tokens[written:], index, results)
            before = len(tokens)
            tokens += text.tokens[written : written + accepted]
            self._table.count(tokens, before)
            written += accepted

    def _pass(
        self,
        tokens: list[int],
        following: Sequence[int],
        index: LookupIndex,
        results: Sequence[RowResults],
    ) -> int:
        """Run a pass after ``tokens``, and return how many tokens it writes."""
        self.passes += 1
        if self._policy.pauses():
            return 1
        if self._known.wants_plain(1):
            self._known.add_pass(1, 1, self._costs[0])
            return 1
        most = min(7, len(following) - 1)
        if most == 0:
            self._policy.count_pass(1, 1, self._costs[0])
            return 1
        by_part = {
            "own": lambda: self._table.propose(tokens, most),
            "lookup": lambda: index.propose(tokens, most),
        }
        unknown = Guesses(following[:most], (UNKNOWN,) * most)
        proposed = [by_part.get(part, lambda: unknown)() for part in self._steps]
        offers = {
            place: Offer(one.evidence, results[place])
            for place, one in enumerate(proposed)
            if one.tokens
        }
        choice = self._policy.choose([offers], 1)
        fed, seconds, source = Guesses(), 0.0, choice.sources[0] if choice.count else None
        if source is not None:
            fed = proposed[source].first(choice.count)
            if self._policy.sources[source].runs_layers:
                fed = self._draft(source, following[:most])
                seconds = STEP * len(fed.tokens)
                fed = fed.first(self._policy.worth_checking(source, [fed], 1))
        held = 0
        while held < len(fed.tokens) and fed.tokens[held] == following[held]:
            held += 1
        if source is not None and fed.tokens:
            tried = fed.evidence[: held + 1]
            self._policy.sources[source].add(tried, held, results[source])
        self._policy.count_pass(1, held + 1, self._costs[len(fed.tokens)] + seconds)
        self.drafted += len(fed.tokens)
        self.accepted += held
        return held + 1

    def _draft(self, source: int, following: Sequence[int]) -> Guesses:
        """Draft as many tokens as pay, of which every third ID is wrong."""
        tokens: list[int] = []
        classes: list[int] = []
        drafted = Guesses(tokens, classes)
        for right in following:
            if tokens and not self._policy.goes_on(source, [drafted], 1):
                break
            tokens.append(right + (right % 3 == 0))
            classes.append(1 + right % 8)
        return drafted


@pytest.mark.parametrize("costs", [FLAT, STEEP], ids=["flat", "steep"])
@pytest.mark.parametrize("draft", ["own", "lookup+own", "own+ends:2", "own+lookup+ends:2"])
def test_both_make_the_same_choices_in_each_text(draft: str, costs: tuple[float, ...]) -> None:
    texts, parts = copying_texts(40, seed=len(draft)), draft.split("+")
    lines = [" ".join(map(str, costs))]
    lines += [
        " ".join(map(str, (len(text.prompt), len(text.tokens), *text.prompt, *text.tokens)))
        for text in texts
    ]
    written = subprocess.check_output(
        [
            built_program("draft_choices"),
            *(part if part in PRIORS else str(STEP) for part in parts),
        ],
        input="\n".join(lines),
        text=True,
    )
    replay = Replay(parts, costs)
    for text, line in zip(texts, written.splitlines(), strict=True):
        replay.run(text)
        assert line == f"{replay.passes} {replay.drafted} {replay.accepted}"
    assert replay.accepted > 100
