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
from skipdec.runtime.drafting.acceptance import Guesses, RowResults
from skipdec.runtime.drafting.config import DraftConfig, parse_draft
from skipdec.runtime.drafting.memory import DraftMemory
from skipdec.runtime.drafting.ngrams import LOOKUP_PRIORS, OWN_PRIORS, LookupIndex, NGramTable
from skipdec.runtime.drafting.policy import Offer

_MEASURED = 3  # passes after which PassCosts takes a cost as measured
RECORD = "replay.json"  # the same on every machine
_PRIORS = {"own": OWN_PRIORS, "lookup": LOOKUP_PRIORS}
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


@dataclass(frozen=True)
class _Guessed:
    """The guesses of one pass, and the place of their part."""

    source: int | None = None
    guesses: Guesses = field(default_factory=Guesses)
    is_try: bool = False


class Replay:
    """Drafters and policies as in a running batch of one row, on texts that are known already."""

    def __init__(self, config: DraftConfig, costs: Sequence[float]) -> None:
        """``costs[n]`` is the cost of a pass over n + 1 tokens."""
        self.figures = Figures()
        self._config = config
        self._costs = costs
        self._table = NGramTable()
        self._memory = DraftMemory()
        self._sources = [
            self._memory.source(part.name, _PRIORS[part.name]) for part in config.parts
        ]
        self._policy = self._memory.policy(self._sources)
        self._is_paused = False  # the present pass
        self._is_measured = False  # the present pass, as one without drafts
        for tokens, cost in enumerate(costs, start=1):
            for _ in range(_MEASURED):
                self._memory.costs.add_pass(1, tokens, cost)

    def learn(self, text: Text) -> None:
        """Count a text that was written before."""
        self._table.count([*text.prompt, *text.completion], len(text.prompt))

    def text(self, text: Text) -> None:
        """Write one text; its first token comes with the prompt, without a pass."""
        tokens = [*text.prompt, *text.completion]
        row = _ReplayedRow(len(self._config.parts))
        place = len(text.prompt) + 1
        self._table.count(tokens[:place], len(text.prompt))
        before = self.figures.passes
        while place < len(tokens):
            self._is_paused = self._config.adapt and self._policy.pauses()
            guessed = _Guessed() if self._is_paused else self._guesses(row, tokens[:place])
            held = agreeing(guessed.guesses.tokens, tokens[place:])
            self._count(row, guessed, held, ends=place + held + 1 >= len(tokens))
            self._table.count(tokens[: place + held + 1], place)
            place += held + 1
        written = len(text.completion) - 1  # by passes
        self.figures.tokens += written
        self.figures.by_text.append((written, self.figures.passes - before))

    def _guesses(self, row: _ReplayedRow, written: list[int]) -> _Guessed:
        """Return the guesses that are fed behind ``written``."""
        self._is_measured = self._config.adapt and self._memory.costs.wants_plain(1)
        if self._is_measured:
            return _Guessed()
        most = self._config.tokens
        proposed = [
            (row.index if part.name == "lookup" else self._table).propose(written, most)
            for part in self._config.parts
        ]
        if not self._config.adapt:
            found = ((place, one) for place, one in enumerate(proposed) if one.tokens)
            return _Guessed(*next(found, (None, Guesses())))
        offers = {
            place: Offer(one.evidence, row.results[place])
            for place, one in enumerate(proposed)
            if one.tokens
        }
        choice = self._policy.choose([offers], 1)
        source = choice.sources[0] if choice.count else None
        if source is None:
            return _Guessed()
        return _Guessed(source, proposed[source].first(choice.count), is_try=choice.is_try)

    def _count(self, row: _ReplayedRow, guessed: _Guessed, held: int, *, ends: bool) -> None:
        drafted = len(guessed.guesses.tokens)
        figures, cost = self.figures, self._costs[drafted]
        figures.passes += 1
        figures.drafted += drafted
        figures.held += held
        figures.cost += cost
        if self._is_paused:
            return
        if drafted or self._is_measured:
            self._memory.costs.add_pass(1, drafted + 1, cost)
        if self._config.adapt and not self._is_measured:
            self._policy.count_pass(1, held + 1, cost)
        if guessed.source is not None:
            tried = held if ends or held == drafted else held + 1
            evidence = guessed.guesses.evidence[:tried]
            results = row.results[guessed.source]
            self._sources[guessed.source].add(evidence, held, results, is_try=guessed.is_try)


class _ReplayedRow:
    """What drafting keeps of the present text."""

    def __init__(self, parts: int) -> None:
        self.index = LookupIndex()
        self.results = [RowResults() for _ in range(parts)]  # by part


def agreeing(guesses: Sequence[int], truth: Sequence[int]) -> int:
    """Return how many guesses hold before the first wrong one.

    >>> agreeing([4, 5, 6], [4, 5, 7, 6])
    2
    """
    for place, (guess, token) in enumerate(zip(guesses, truth, strict=False)):
        if guess != token:
            return place
    return min(len(guesses), len(truth))
