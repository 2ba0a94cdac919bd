"""DraftedDecoding: rows feed guesses of what comes next, and keep those that are right."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from typing_extensions import override

from ..drafting.config import DraftConfig, DraftPart
from ..drafting.memory import DraftMemory
from ..drafting.policy import DraftPolicy
from ..stitching.protocol import StepRow
from ..stitching.slot_stitcher import SlotStitcher
from ..tokens.outputs import Drafts, StreamDelta
from ..tokens.sampler import StepLogits
from .decoding import Decoding, OrdinaryDecoding, fed
from .drafters import Drafter, LookupDrafter, OwnDrafter, RowDrafts, room_of
from .layer_drafter import LayerDrafter, TrainedDrafter
from .loaded_bundle import LoadedBundle, RunningBatchConfig
from .running_request import Row


@dataclass(frozen=True)
class _Asked:
    """A drafter with the policy that says how many tokens it proposes."""

    drafter: Drafter
    policy: DraftPolicy


@dataclass(frozen=True)
class _Drafted:
    """The guesses that one row feeds in the present pass."""

    source: str
    tokens: Sequence[int]


class DraftedDecoding(Decoding):
    """Feeds behind each row's last token what the first drafter with a guess proposes.

    How many is the policy's choice, from measured costs and acceptance; see `DraftPolicy`. Rows
    whose requests ask for no drafts feed one token. A guess changes no text: `Decoding.accept`
    draws every token from full logits with the row's own sampler.

    The drafters learn from every text, also where nothing was drafted.
    """

    def __init__(
        self,
        config: DraftConfig,
        drafters: Sequence[Drafter],
        memory: DraftMemory,
        vocab_size: int,
    ) -> None:
        """Ask ``drafters`` in order; ``memory`` lasts longer than this object."""
        self._config = config
        self._memory = memory
        self._vocab_size = vocab_size
        self._asked = [_Asked(one, memory.policy(one.source, one.draft_prior)) for one in drafters]
        self._rows: dict[int, RowDrafts] = {}  # by number
        self._drafted: dict[int, _Drafted] = {}  # of the present pass, by the row's number
        self._results: dict[str, list[tuple[int, int]]] = {}  # of it, by source: (tried, held)
        self._drafting = 0
        self._has_new_rows = False  # in the present pass
        self._draft_seconds = 0.0  # of all draft steps, when the present pass began

    def replace_drafters(self, make: Callable[[Drafter], Drafter]) -> None:
        """Replace each drafter by ``make(drafter)``, which keeps its policy."""
        self._asked = [_Asked(make(one.drafter), one.policy) for one in self._asked]

    @property
    @override
    def drafting(self) -> int:
        return self._drafting

    @property
    @override
    def draft_steps(self) -> int:
        return sum(asked.drafter.draft_steps for asked in self._asked)

    @override
    def feed(self, rows: Sequence[Row]) -> list[StepRow]:
        self._end_pass()
        self._draft_seconds = self._memory.costs.draft_seconds
        self._follow(rows)
        self._drafted = self._draft(rows)
        return [
            fed(row, drafted.tokens if (drafted := self._drafted.get(row.number)) else ())
            for row in rows
        ]

    @override
    def passed(self, rows: Sequence[StepRow], seconds: float) -> None:
        costs = self._memory.costs
        seconds -= costs.draft_seconds - self._draft_seconds
        longest = max(len(row.tokens) for row in rows)
        # A pass with new rows also had to find its route, and a fruitless one asked for guesses.
        is_fruitless = longest == 1 and self._drafting > 0
        if not (self._has_new_rows or is_fruitless):
            costs.add_pass(len(rows), longest, seconds)
        for asked in self._asked:
            asked.policy.count_pass()

    @override
    def accept(
        self,
        row: Row,
        fed: StepRow,
        logits: StepLogits,
        first: int,
        step_start: float | None,
        deltas: list[StreamDelta],
    ) -> None:
        before = len(row.token_ids)
        try:
            super().accept(row, fed, logits, first, step_start, deltas)
        finally:
            self._count(row, len(fed.tokens) - 1, len(row.token_ids) - before)

    def _follow(self, rows: Sequence[Row]) -> None:
        """Begin with new rows, and forget those that are gone."""
        present = {row.number for row in rows}
        for number in [number for number in self._rows if number not in present]:
            del self._rows[number]
        new = [row for row in rows if row.request.drafts and row.number not in self._rows]
        self._has_new_rows = bool(new)
        for row in new:
            self._rows[row.number] = RowDrafts.of(row)

    def _learn(self, drafts: RowDrafts) -> None:
        """Let the drafters learn what the row has written since, when one is asked or it ends."""
        drafts.follow()
        if drafts.learned == len(drafts.tokens):
            return
        for asked in self._asked:
            asked.drafter.learn(drafts)
        drafts.learned = len(drafts.tokens)

    def _draft(self, rows: Sequence[Row]) -> dict[int, _Drafted]:
        """Ask one drafter after the other for the rows that have no guesses yet."""
        found: dict[int, _Drafted] = {}
        open_rows = [
            self._rows[row.number] for row in rows if row.number in self._rows and room_of(row) > 0
        ]
        self._drafting = 0
        if self._config.adapt and self._memory.costs.wants_plain(len(rows)):
            return found
        for asked in self._asked:
            if not open_rows:
                break
            able = [drafts for drafts in open_rows if asked.drafter.can_draft(drafts.row)]
            most = self._most(asked, able, len(rows)) if able else 0
            self._drafting = max(self._drafting, most)
            if most == 0:
                continue
            for drafts in open_rows:
                self._learn(drafts)
            proposals = asked.drafter.propose(able, most)
            for drafts, proposal in zip(able, proposals, strict=True):
                if tokens := self._valid(proposal)[: min(most, room_of(drafts.row))]:
                    found[drafts.row.number] = _Drafted(asked.drafter.source, tokens)
            open_rows = [drafts for drafts in open_rows if drafts.row.number not in found]
        return found

    def _most(self, asked: _Asked, rows: Sequence[RowDrafts], num_rows: int) -> int:
        most = min(self._config.tokens, max(room_of(drafts.row) for drafts in rows))
        if not self._config.adapt:
            return most
        source = asked.drafter.source
        return asked.policy.choose([drafts.of_source(source) for drafts in rows], num_rows, most)

    def _valid(self, tokens: Sequence[int]) -> Sequence[int]:
        """Return the tokens up to the first that the vocabulary does not have."""
        for place, token in enumerate(tokens):
            if not 0 <= token < self._vocab_size:
                return tokens[:place]
        return tokens

    def _count(self, row: Row, fed_guesses: int, accepted: int) -> None:
        """Count what came of a row's guesses."""
        drafts = self._rows.get(row.number)
        if drafts is None:
            return
        held = max(0, min(accepted - 1, fed_guesses))
        drafted = self._drafted.get(row.number)
        if drafted is not None and fed_guesses:
            ended = row.finish_reason is not None
            tried = held if ended or held == fed_guesses else held + 1
            drafts.of_source(drafted.source).add(tried, held)
            self._results.setdefault(drafted.source, []).append((tried, held))
        counted = row.drafts or Drafts()
        row.drafts = Drafts(
            counted.passes + 1,
            counted.drafted + fed_guesses,
            counted.accepted + held,
        )
        if row.finish_reason is not None:
            self._learn(drafts)

    def _end_pass(self) -> None:
        """Tell the policies what came of the last pass."""
        for asked in self._asked:
            if results := self._results.get(asked.drafter.source):
                asked.policy.add(results)
        self._results = {}


def make_decoding(
    loaded: LoadedBundle, slots: SlotStitcher, config: RunningBatchConfig
) -> Decoding:
    """Return the decoding of a batch: one token per pass, or ``config.draft``."""
    draft = config.draft
    if draft is None:
        return OrdinaryDecoding()
    memory = loaded.draft_memory

    narrow = draft.head is not None

    def by_layers(part: DraftPart) -> Drafter:
        plan = loaded.drafts.plan(part)
        prior = loaded.drafts.draft_prior(plan, narrow=narrow)
        source = f"{part},head={draft.head}" if narrow else str(part)
        kind = TrainedDrafter if part.name == "trained" else LayerDrafter
        return kind(source, plan, loaded.engines, slots, memory.costs, prior, narrow=narrow)

    loaded.engines.load_drafts(draft)
    makers: Mapping[str, Callable[[DraftPart], Drafter]] = {
        "own": lambda part: OwnDrafter(memory.tables, per_client=config.prefixes == "client"),
        "lookup": lambda part: LookupDrafter(),
        "layers": by_layers,
        "ends": by_layers,
        "first": by_layers,
        "trained": by_layers,
    }
    drafters = [makers[part.name](part) for part in draft.parts]
    return DraftedDecoding(draft, drafters, memory, loaded.model.vocab_size)
