"""Replay texts through the drafters: which guesses of each text would have held.

    python scripts/bench.py drafts replay /tmp/drafts/prose.jsonl /tmp/drafts/code.jsonl \\
        /tmp/drafts/summaries.jsonl --tokenizer /tmp/drafts/tokenizer.json

The text of each row stands for what an engine writes: guesses are compared with it, and no model
runs. Drafters and policy are those of the runtime; a pass over S tokens costs what ``--costs``
says, so neither the machine nor its load matters. Texts come one at a time, each file begins with
an empty table, and ``--before`` tells the table other texts first. "Gain" is the cost of one pass
per token ÷ the cost of all passes, without prompts.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pages.drafts import FIGURES, PAGE, draw, replay_table

from benchmarks.drafts import texts
from benchmarks.drafts.texts import NamedTexts, Text
from benchmarks.record import Record
from skipdec.runtime.drafting.config import DraftConfig, parse_draft
from skipdec.runtime.drafting.memory import DraftMemory
from skipdec.runtime.drafting.ngrams import LookupIndex, NGramTable
from skipdec.runtime.drafting.policy import Acceptance

_MEASURED = 3  # passes after which PassCosts takes a cost as measured
RECORD = "replay.json"  # the same on every machine
DRAFTS = ("own", "lookup", "own+lookup", "lookup+own")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `run`."""
    texts.add_options(parser)
    parser.add_argument("--drafts", nargs="+", default=DRAFTS)
    parser.add_argument(
        "--costs",
        type=lambda text: tuple(map(float, text.split(","))),
        default=tuple(1 + 0.04 * further for further in range(8)),
        help="of passes over 1, 2, … 8 tokens (the policy's own guess: 1,1.04,…,1.28)",
    )
    parser.add_argument("--before", type=Path, help="texts that `own` has counted before")
    parser.add_argument("--name", help="keep the figures under this name, and draw the page")


def run(arguments: argparse.Namespace) -> None:
    """Replay every file with each draft text; print a table."""
    if len(arguments.costs) != 8 or arguments.costs[0] != 1:
        raise SystemExit(
            f"--costs is {arguments.costs}; allowed: 8 numbers, of which the first is 1"
        )
    configs = {text: parse_draft(text) for text in arguments.drafts}
    before = None
    if arguments.before:
        before = texts.tokenised(arguments.before, texts.tokenizer_of(arguments), None)
    found = {
        each.name: {
            "texts": len(each.texts),
            "tokens": each.num_tokens,
            "drafts": {
                text: replayed(each, config, arguments.costs, before).document()
                for text, config in configs.items()
                if config is not None
            },
        }
        for each in texts.texts_of(arguments)
    }
    part = {
        "kind": "replay",
        "vocabulary": texts.tokenizer_of(arguments).get_vocab_size(),
        "before": before and {"texts": len(before.texts), "tokens": before.num_tokens},
        "costs": arguments.costs,
        "files": found,
    }
    print("\n".join(replay_table(part)))
    if arguments.name:
        Record(FIGURES / RECORD).add(arguments.name, part, {})
        draw(FIGURES, PAGE)


@dataclass
class Figures:
    """Sums over replayed texts; costs are in passes over one token."""

    tokens: int = 0
    passes: int = 0
    drafted: int = 0
    held: int = 0
    cost: float = 0.0
    by_text: list[tuple[int, int]] = field(default_factory=list)  # tokens and passes

    @property
    def tokens_per_pass(self) -> float:
        """Mean number of tokens of a pass."""
        return self.tokens / max(self.passes, 1)

    @property
    def gain(self) -> float:
        """Cost of one pass per token ÷ cost of these passes."""
        return self.tokens / max(self.cost, 1e-9)

    @property
    def acceptance(self) -> float:
        """Share of drafted tokens that held."""
        return self.held / max(self.drafted, 1)

    def document(self) -> dict[str, float]:
        """Return the figures as JSON; "last half": tokens per pass of the last half of texts."""
        last = self.by_text[len(self.by_text) // 2 :]
        last_passes = max(sum(passes for _, passes in last), 1)
        return {
            "tokens_per_pass": round(self.tokens_per_pass, 3),
            "last_half": round(sum(tokens for tokens, _ in last) / last_passes, 3),
            "held": round(self.acceptance, 3),
            "guessed_per_pass": round(self.drafted / max(self.passes, 1), 3),
            "gain": round(self.gain, 3),
        }


def replayed(
    named: NamedTexts,
    config: DraftConfig,
    costs: Sequence[float],
    before: NamedTexts | None = None,
) -> Figures:
    """Return the figures of all texts, in order, with one memory, which has seen ``before``."""
    replay = Replay(config, costs)
    for text in before.texts if before else ():
        replay.learn(text)
    for text in named.texts:
        replay.text(text)
    return replay.figures


class Replay:
    """Drafters and policies as in a running batch of one row, on texts that are known already."""

    def __init__(self, config: DraftConfig, costs: Sequence[float]) -> None:
        """``costs[n]`` is the cost of a pass over n + 1 tokens."""
        self.figures = Figures()
        self._config = config
        self._costs = costs
        self._table = NGramTable()
        self._memory = DraftMemory()
        for tokens, cost in enumerate(costs, start=1):
            for _ in range(_MEASURED):
                self._memory.costs.add_pass(1, tokens, cost)

    def learn(self, text: Text) -> None:
        """Count a text that was written before."""
        self._table.count([*text.prompt, *text.completion], len(text.prompt))

    def text(self, text: Text) -> None:
        """Write one text; its first token comes with the prompt, without a pass."""
        tokens = [*text.prompt, *text.completion]
        row = _ReplayedRow(tokens)
        place = len(text.prompt) + 1
        self._table.count(tokens[:place], len(text.prompt))
        before = self.figures.passes
        while place < len(tokens):
            source, guesses = self._guesses(row, tokens[:place])
            held = agreeing(guesses, tokens[place:])
            self._count(row, source, len(guesses), held, ends=place + held + 1 >= len(tokens))
            self._table.count(tokens[: place + held + 1], place)
            place += held + 1
        written = len(text.completion) - 1  # by passes
        self.figures.tokens += written
        self.figures.by_text.append((written, self.figures.passes - before))

    def _guesses(self, row: _ReplayedRow, written: list[int]) -> tuple[str, Sequence[int]]:
        """Return the guesses of the first drafter that has any, and its source."""
        if self._config.adapt and self._memory.costs.wants_plain(1):
            return "", ()
        for part in self._config.parts:
            most = self._config.tokens
            if self._config.adapt:
                policy = self._memory.policy(part.name)
                most = policy.choose([row.of_source(part.name)], 1, most)
            drafter = row.index if part.name == "lookup" else self._table
            if most and (found := drafter.propose(written, most)):
                return part.name, found
        return "", ()

    def _count(
        self, row: _ReplayedRow, source: str, drafted: int, held: int, *, ends: bool
    ) -> None:
        figures, cost = self.figures, self._costs[drafted]
        figures.passes += 1
        figures.drafted += drafted
        figures.held += held
        figures.cost += cost
        self._memory.costs.add_pass(1, drafted + 1, cost)
        for part in self._config.parts:
            self._memory.policy(part.name).count_pass()
        if source:
            tried = held if ends or held == drafted else held + 1
            row.of_source(source).add(tried, held)
            self._memory.policy(source).add([(tried, held)])


class _ReplayedRow:
    """What drafting keeps of the present text."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self.index = LookupIndex()
        self._acceptance: dict[str, Acceptance] = {}

    def of_source(self, source: str) -> Acceptance:
        """Return how often drafts of ``source`` held in this text."""
        return self._acceptance.setdefault(source, Acceptance())


def agreeing(guesses: Sequence[int], truth: Sequence[int]) -> int:
    """Return how many guesses hold before the first wrong one.

    >>> agreeing([4, 5, 6], [4, 5, 7, 6])
    2
    """
    for place, (guess, token) in enumerate(zip(guesses, truth, strict=False)):
        if guess != token:
            return place
    return min(len(guesses), len(truth))
