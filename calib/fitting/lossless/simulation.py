"""Simulation of drafts: recorded proposals and measured costs through the real policy."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from typing_extensions import override

from ....runtime.drafting.acceptance import Guesses, RowResults
from ....runtime.drafting.acceptance import SourceAcceptance as Acceptance
from ....runtime.drafting.config import DraftConfig
from ....runtime.drafting.costs import PassCosts
from ....runtime.drafting.ngrams import LOOKUP_PRIORS, OWN_PRIORS, LookupIndex, NGramTable
from ....runtime.drafting.policy import DraftPolicy, Offer
from ....runtime.tokens.outputs import Drafts
from .config import source_name

_MEASURED = 15  # times that each cost is given to the policy, which takes medians


@dataclass(frozen=True)
class Text:
    """A prompt, what follows it at full depth, and the most tokens it may have."""

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    max_tokens: int

    @property
    def whole(self) -> tuple[int, ...]:
        """Prompt and text."""
        return (*self.prompt, *self.tokens)


@dataclass(frozen=True)
class Costs:
    """Costs at one row, in passes over one token.

    ``passes[i]`` is that of a pass over i + 1 tokens, ``steps`` that of a draft step by source.
    """

    passes: tuple[float, ...]
    steps: Mapping[str, float]

    def for_policy(self) -> PassCosts:
        """Return these costs as if they had been measured."""
        costs = PassCosts()
        for _ in range(_MEASURED):
            for tokens, seconds in enumerate(self.passes, 1):
                costs.add_pass(1, tokens, seconds)
            for source, seconds in self.steps.items():
                costs.add_draft(source, 1, seconds)
        costs.add_pass(1, 1, self.passes[0])
        return costs


class Source(ABC):
    """Proposes tokens for the texts of a simulation, one text after the other.

    ``priors`` are those of the drafter that it stands for.
    """

    priors: Sequence[float] = (0.5,)

    def begin(self, text: Text) -> None:  # noqa: B027  (most keep nothing of one text)
        """Begin a text."""

    def learn(self, tokens: Sequence[int], start: int) -> None:  # noqa: B027
        """Take the tokens of the text from ``start`` on; most learn nothing."""

    @abstractmethod
    def propose(self, tokens: Sequence[int], written: int, most: int) -> Guesses:
        """Return up to ``most`` tokens behind ``tokens``, of which ``written`` are generated."""


class OwnNGrams(Source):
    """N-grams of the texts so far, those that teach first."""

    priors = OWN_PRIORS

    def __init__(self, teaching: Sequence[Text]) -> None:
        self._table = NGramTable()
        teach(self._table, teaching)

    @override
    def learn(self, tokens: Sequence[int], start: int) -> None:
        self._table.count(tokens, start)

    @override
    def propose(self, tokens: Sequence[int], written: int, most: int) -> Guesses:
        return self._table.propose(tokens, most)


class Lookup(Source):
    """What followed the last tokens earlier in the same text."""

    priors = LOOKUP_PRIORS

    @override
    def begin(self, text: Text) -> None:
        self._index = LookupIndex()

    @override
    def propose(self, tokens: Sequence[int], written: int, most: int) -> Guesses:
        return self._index.propose(tokens, most)


class Recorded(Source):
    """What layers proposed at each place of each text."""

    def __init__(self, proposals: Mapping[tuple[tuple[int, ...], int], Sequence[int]]) -> None:
        """``proposals`` are by prompt and number of tokens written."""
        self._proposals = proposals

    @override
    def begin(self, text: Text) -> None:
        self._prompt = text.prompt

    @override
    def propose(self, tokens: Sequence[int], written: int, most: int) -> Guesses:
        return Guesses.alike(self._proposals.get((self._prompt, written), ())[:most])


@dataclass(frozen=True)
class Simulated:
    """What a draft comes to: its figures, and full depth's time ÷ its own, of steps alone."""

    drafts: Drafts
    gain: float


@dataclass(frozen=True)
class SourceAcceptance:
    """How often one source is right, from every place of the texts.

    ``first`` is the share of its proposals whose first token is right; ``held`` the mean number
    right of up to 7; ``proposed`` the share of places where it proposes anything.
    """

    first: float
    held: float
    proposed: float


def teach(table: NGramTable, texts: Sequence[Text]) -> None:
    """Count ``texts`` in ``table``, as engines do that write them."""
    for text in texts:
        table.count(text.whole, len(text.prompt))


def acceptance(source: Source, texts: Sequence[Text], most: int) -> SourceAcceptance:
    """Measure ``source`` at every place of ``texts``; it learns each text as it is written."""
    places = proposed = first = held = 0
    for text in texts:
        source.begin(text)
        source.learn(text.whole[: len(text.prompt) + 1], len(text.prompt))
        for written in range(1, len(text.tokens)):
            tokens = text.whole[: len(text.prompt) + written]
            guesses = source.propose(tokens, written, most).tokens
            right = _right(guesses, text.tokens[written:])
            places, proposed = places + 1, proposed + bool(guesses)
            first, held = first + (right > 0), held + right
            source.learn(text.whole[: len(tokens) + 1], len(tokens))
    return SourceAcceptance(
        first / max(1, proposed), held / max(1, proposed), proposed / max(1, places)
    )


def simulate(
    draft: DraftConfig, make: Callable[[str], Source], texts: Sequence[Text], costs: Costs
) -> Simulated:
    """Run ``draft`` over ``texts``, one row at a time, as `DraftedDecoding` would.

    ``make`` returns a source by its name, see `source_name`.
    """
    names = [source_name(part, draft.head) for part in draft.parts]
    sources = {name: make(name) for name in names}
    run = _Run(draft, sources, costs)
    for text in texts:
        run.text(text)
    plain = sum(len(text.tokens) - 1 for text in texts) * costs.passes[0]
    return Simulated(run.figures, plain / run.seconds if run.seconds else 1.0)


@dataclass(frozen=True)
class _Guessed:
    """The guesses of one pass, and the source that made them."""

    source: int | None = None
    guesses: Guesses = field(default_factory=Guesses)
    is_try: bool = False


class _Run:
    """One simulated batch of one row."""

    def __init__(self, draft: DraftConfig, sources: Mapping[str, Source], costs: Costs) -> None:
        known = costs.for_policy()
        self._draft, self._costs = draft, costs
        self._sources = list(sources.values())
        self._steps = [costs.steps.get(name, 0.0) for name in sources]
        self._acceptances = [
            Acceptance(name, source.priors, costs.steps.get(name, 0.0))
            for name, source in sources.items()
        ]
        self._policy = DraftPolicy(self._acceptances, known)
        self._known = known
        self.seconds = 0.0
        self.figures = Drafts()

    def text(self, text: Text) -> None:
        results = [RowResults() for _ in self._sources]
        for source in self._sources:
            source.begin(text)
        self._learn(text, 0, 1)
        written = 1
        while written < len(text.tokens):
            pauses = self._draft.adapt and self._policy.pauses()
            is_plain = self._draft.adapt and not pauses and self._known.wants_plain(1)
            looks = not (pauses or is_plain)
            guessed = self._guesses(text, written, results) if looks else _Guessed()
            guesses = guessed.guesses.tokens
            seconds = self._costs.passes[len(guesses)]
            if is_plain:
                self._known.add_pass(1, 1, seconds)
            if guessed.source is not None:
                seconds += self._steps[guessed.source] * len(guesses)
            self.seconds += seconds
            right = _right(guesses, text.tokens[written:])
            accepted = min(right + 1, len(text.tokens) - written)
            held = accepted - 1 if guesses else 0
            self._count(guessed, held, results, ended=written + accepted == len(text.tokens))
            if looks and self._draft.adapt:
                self._policy.count_pass(1, accepted, seconds)
            self._learn(text, written, written + accepted)
            written += accepted

    def _guesses(self, text: Text, written: int, results: Sequence[RowResults]) -> _Guessed:
        """Return what the row feeds behind ``written`` tokens."""
        most = min(self._draft.tokens, text.max_tokens - written - 1)
        if most <= 0:
            return _Guessed()
        tokens = text.whole[: len(text.prompt) + written]
        proposed = [source.propose(tokens, written, most) for source in self._sources]
        if not self._draft.adapt:
            found = ((place, one) for place, one in enumerate(proposed) if one.tokens)
            return _Guessed(*next(found, (None, Guesses())))
        offers = {
            place: Offer(one.evidence, results[place])
            for place, one in enumerate(proposed)
            if one.tokens
        }
        choice = self._policy.choose([offers], 1)
        chosen = choice.sources[0] if choice.count else None
        if chosen is None:
            return _Guessed()
        return _Guessed(chosen, proposed[chosen].first(choice.count), is_try=choice.is_try)

    def _count(
        self, guessed: _Guessed, held: int, results: Sequence[RowResults], *, ended: bool
    ) -> None:
        drafted = len(guessed.guesses.tokens)
        before = self.figures
        self.figures = Drafts(before.passes + 1, before.drafted + drafted, before.accepted + held)
        if guessed.source is not None:
            tried = held if ended or held == drafted else held + 1
            evidence, row = guessed.guesses.evidence[:tried], results[guessed.source]
            self._acceptances[guessed.source].add(evidence, held, row, is_try=guessed.is_try)

    def _learn(self, text: Text, start: int, stop: int) -> None:
        begin = len(text.prompt)
        for source in self._sources:
            source.learn(text.whole[: begin + stop], begin + start)


def _right(guesses: Sequence[int], tokens: Sequence[int]) -> int:
    """Return how many guesses are right before the first wrong one."""
    count = 0
    for guess, token in zip(guesses, tokens, strict=False):
        if guess != token:
            break
        count += 1
    return count
