"""DraftedDecoding: rows feed guesses of the next tokens, and keep those that are right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from typing_extensions import override

from ..drafting.acceptance import UNKNOWN, Guesses
from ..drafting.config import DraftConfig, DraftPart
from ..drafting.memory import DraftMemory
from ..drafting.policy import Offer
from ..schedule import LayerPlan
from ..stitching.protocol import StepRow
from ..stitching.slot_stitcher import SlotStitcher
from .decoding import Decoding, OrdinaryDecoding, fed
from .drafters import Drafter, LookupDrafter, OwnDrafter, RowDrafts, room_of
from .layer_drafter import LayerDrafter, TrainedDrafter
from .loaded_bundle import LoadedBundle, RunningBatchConfig
from .running_request import Row

_LEARNED_OF_PAUSES = 4  # one in so many texts that end during a pause is learned


@dataclass(frozen=True)
class _Drafted:
    """The guesses that one row feeds in this pass, and the index of their drafter."""

    drafter: int
    guesses: Guesses


class DraftedDecoding(Decoding):
    """Feeds the tokens that a drafter proposes after each row's last token.

    `DraftPolicy` chooses the drafter and the number of tokens. Without ``adapt`` it is the first
    drafter that proposes anything, with all of its tokens. Rows whose requests switch drafts off
    feed one token. A guess changes no text: `Decoding.accept` draws every token from full logits
    with the row's own sampler.

    The drafters learn from every text, even if nothing was drafted for it, but only from every
    fourth text that ends during a pause of the policy.
    """

    def __init__(
        self,
        config: DraftConfig,
        drafters: Sequence[Drafter],
        memory: DraftMemory,
    ) -> None:
        """Use ``drafters`` in this order; ``memory`` outlives this object."""
        self._config = config
        self._memory = memory
        self._drafters = list(drafters)
        self._policy = memory.policy(
            [memory.source(one.source, one.priors, one.draft_prior) for one in drafters]
        )
        self._rows: dict[int, RowDrafts] = {}  # by number
        self._drafted: dict[int, _Drafted] = {}  # of this pass, by row number
        self._drafting = 0
        self._held = 0  # guesses accepted in this pass
        self._is_paused = False  # in this pass
        self._has_new_rows = False  # in this pass
        self._ended_in_pauses = 0
        self._draft_seconds = 0.0  # of all draft steps before this pass

    @property
    @override
    def drafting(self) -> int:
        return self._drafting

    @property
    @override
    def draft_steps(self) -> int:
        return sum(drafter.draft_steps for drafter in self._drafters)

    @override
    def feed(self, rows: Sequence[Row]) -> list[StepRow]:
        was_paused = self._is_paused
        self._is_paused = self._config.adapt and self._policy.pauses()
        if self._is_paused:
            self._drafting = 0
            return [fed(row) for row in rows]
        self._draft_seconds = self._memory.costs.draft_seconds
        self._held = 0
        self._follow(rows)
        self._drafted = self._draft(rows)
        self._has_new_rows |= was_paused  # what was written in the pause is learned now
        return [
            fed(row, drafted.guesses.tokens if (drafted := self._drafted.get(row.number)) else ())
            for row in rows
        ]

    @override
    def passed(
        self, rows: Sequence[StepRow], seconds: float, searching: float, *, is_first: bool = False
    ) -> None:
        if self._is_paused:
            return
        costs = self._memory.costs
        longest = max(len(row.tokens) for row in rows)
        # Binding engines and learning texts take long even without drafts.
        is_long = self._has_new_rows or is_first
        if not is_long:
            # A pass over one token per row counts without the search for guesses.
            beside = searching if longest == 1 else costs.draft_seconds - self._draft_seconds
            costs.add_pass(len(rows), longest, seconds - beside)
        if not self._config.adapt:
            return
        if is_long or longest == 1:  # drafts only cost the search, whatever else took long
            self._policy.count_pass(len(rows), self._held, searching)
        else:
            self._policy.count_pass(len(rows), len(rows) + self._held, seconds)

    @override
    def accepted(self, row: Row, guesses: int, held: int) -> None:
        if row.request.drafts:
            row.count_drafts(guesses, held)  # passes without guesses count, too
        ended = row.finish_reason is not None
        if self._is_paused:
            if ended:
                self._end_in_pause(row)
            return
        drafts = self._rows.get(row.number)
        if drafts is None:
            return
        self._held += held
        drafted = self._drafted.get(row.number)
        if drafted is not None and guesses:
            tried = held if ended else min(held + 1, guesses)  # with the first wrong one
            source = self._policy.sources[drafted.drafter]
            evidence = drafted.guesses.evidence[:tried]
            source.add(evidence, held, drafts.of_source(source.source))
        if ended:
            self._learn(drafts)

    def _follow(self, rows: Sequence[Row]) -> None:
        """Add new rows and forget those that have ended."""
        present = {row.number for row in rows}
        for number in [number for number in self._rows if number not in present]:
            del self._rows[number]
        new = [row for row in rows if row.request.drafts and row.number not in self._rows]
        self._has_new_rows = bool(new)
        for row in new:
            self._rows[row.number] = RowDrafts.of(row)

    def _learn(self, drafts: RowDrafts) -> None:
        """Let the drafters learn what the row has written since they last did."""
        drafts.follow()
        if drafts.learned == len(drafts.tokens):
            return
        for drafter in self._drafters:
            drafter.learn(drafts)
        drafts.learned = len(drafts.tokens)

    def _end_in_pause(self, row: Row) -> None:
        """Learn one in four texts that end during a pause, so that pauses cost almost nothing."""
        drafts = self._rows.pop(row.number, None)
        if not row.request.drafts:
            return
        self._ended_in_pauses += 1
        if self._ended_in_pauses % _LEARNED_OF_PAUSES == 0:
            self._learn(drafts or RowDrafts.of(row))

    def _draft(self, rows: Sequence[Row]) -> dict[int, _Drafted]:
        """Return the guesses of rows that draft, by their numbers."""
        self._drafting = 0
        if self._config.adapt and self._memory.costs.wants_plain(len(rows)):
            return {}
        open_rows = [
            self._rows[row.number] for row in rows if row.number in self._rows and room_of(row) > 0
        ]
        if not open_rows:
            return {}
        for drafts in open_rows:
            self._learn(drafts)
        if self._config.adapt:
            return self._draft_most_expected(open_rows, len(rows))
        return self._draft_in_order(open_rows)

    def _draft_in_order(self, open_rows: Sequence[RowDrafts]) -> dict[int, _Drafted]:
        """Ask one drafter after the other for the rows that have no guesses yet."""
        found: dict[int, _Drafted] = {}
        for index, drafter in enumerate(self._drafters):
            able = [
                one
                for one in open_rows
                if one.row.number not in found and drafter.reach(one.row, 1) > 0
            ]
            most = self._most(able)
            if most == 0:
                continue
            self._drafting = max(self._drafting, most)
            for one, guesses in zip(able, self._propose(index, able, most), strict=True):
                if guesses.tokens:
                    found[one.row.number] = _Drafted(index, guesses)
        return found

    def _most(self, rows: Sequence[RowDrafts]) -> int:
        """Return the most tokens that any of the rows can use, or 0 without rows."""
        return min(self._config.tokens, max((room_of(one.row) for one in rows), default=0))

    def _draft_most_expected(
        self, open_rows: Sequence[RowDrafts], num_rows: int
    ) -> dict[int, _Drafted]:
        """Let the policy choose among n-grams' guesses and those that layers may draft."""
        most = self._config.tokens
        proposed: dict[tuple[int, int], Guesses] = {}  # by row and drafter
        offers: list[dict[int, Offer]] = [{} for _ in open_rows]
        for index, drafter in enumerate(self._drafters):
            if isinstance(drafter, LayerDrafter):
                lengths = [drafter.reach(one.row, most) for one in open_rows]
                evidence: list[Sequence[int]] = [(UNKNOWN,) * length for length in lengths]
            else:
                guesses = self._propose(index, open_rows, most)
                for one, row_guesses in zip(open_rows, guesses, strict=True):
                    proposed[one.row.number, index] = row_guesses
                evidence = [one.evidence for one in guesses]
            for one, row_offers, classes in zip(open_rows, offers, evidence, strict=True):
                if classes:
                    row_offers[index] = Offer(classes, one.of_source(drafter.source))
        choice = self._policy.choose(offers, num_rows)
        found: dict[int, _Drafted] = {}
        for index, drafter in enumerate(self._drafters):
            able = [
                one
                for one, source in zip(open_rows, choice.sources, strict=False)
                if source == index
            ]
            if not able:
                continue
            if isinstance(drafter, LayerDrafter):
                guesses = self._draft_on(index, drafter, able, num_rows)
            else:
                self._drafting = max(self._drafting, choice.count)
                guesses = [proposed[one.row.number, index].first(choice.count) for one in able]
            for one, row_guesses in zip(able, guesses, strict=True):
                if row_guesses.tokens:
                    found[one.row.number] = _Drafted(index, row_guesses)
        return found

    def _draft_on(
        self, index: int, drafter: LayerDrafter, rows: Sequence[RowDrafts], num_rows: int
    ) -> list[Guesses]:
        """Return what layers draft for rows: as many tokens as pay."""
        policy = self._policy
        drafted = drafter.propose(
            rows, self._config.tokens, lambda each: policy.goes_on(index, each, num_rows)
        )
        self._drafting = max(self._drafting, *(len(one.tokens) for one in drafted))
        count = policy.worth_checking(index, drafted, num_rows)
        return [guesses.first(count) for guesses in drafted]

    def _propose(self, index: int, rows: Sequence[RowDrafts], most: int) -> list[Guesses]:
        """Return guesses for which rows have room."""
        proposed = self._drafters[index].propose(rows, most)
        return [
            guesses.first(min(most, room_of(one.row)))
            for one, guesses in zip(rows, proposed, strict=True)
        ]


def make_decoding(
    loaded: LoadedBundle, slots: SlotStitcher, config: RunningBatchConfig
) -> Decoding:
    """Return the decoding of a batch: one token per pass, or ``config.draft``."""
    draft = config.draft
    if draft is None:
        return OrdinaryDecoding()
    memory = loaded.draft_memory
    loaded.engines.load_drafts(draft)

    def drafter(part: DraftPart) -> Drafter:
        if part.name == "own":
            return OwnDrafter(memory.tables, per_client=config.prefixes == "client")
        if part.name == "lookup":
            return LookupDrafter()
        shared = loaded.engines, slots, memory.costs, loaded.drafts.draft_prior(part)
        if part.name == "trained":
            return TrainedDrafter(str(part), LayerPlan(()), *shared)
        return LayerDrafter(str(part), loaded.drafts.plan(part), *shared)

    return DraftedDecoding(draft, [drafter(part) for part in draft.parts], memory)
