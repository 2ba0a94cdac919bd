"""LayerDrafter: some layers of the model draft tokens, one step after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

from typing_extensions import override

from ..drafting.acceptance import LAYER_PRIORS, Guesses, confidence_class
from ..drafting.costs import PassCosts
from ..schedule import LayerPlan
from ..stitching.loaded import EngineLock
from ..stitching.protocol import DraftRow
from ..stitching.slot_stitcher import SlotStitcher
from ..tokens.logits import StepLogits
from .drafters import Drafter, RowDrafts, room_of
from .running_request import Row

GoesOn = Callable[[Sequence[Guesses]], bool]
"""Returns whether a further draft step pays, given the guesses of the rows that can use one."""

_Draft = tuple[list[int], list[int]]  # a row's drafted tokens, and the class of each


class LayerDrafter(Drafter):
    """Proposes tokens that some of the model's layers predict.

    A draft step feeds one token of each row through these layers and the head. Each token is drawn
    as the row's sampler would draw it, with the random number that its position will have: no
    random number is used up, and drafts of sampled texts are accepted far more often.

    It drafts for rows whose own plan has these layers and does not change over all drafted tokens,
    so that passes overwrite all keys and values of the draft before they read them.
    """

    priors = LAYER_PRIORS

    def __init__(
        self,
        source: str,
        plan: LayerPlan,
        engines: EngineLock,
        slots: SlotStitcher,
        costs: PassCosts,
        draft_prior: float,
    ) -> None:
        """Run the layers of ``plan`` on ``slots``; ``costs`` learns how long that takes."""
        self.source = source
        self.draft_prior = draft_prior
        self._plan = plan
        self._engines = engines
        self._slots = slots
        self._costs = costs
        self._steps = 0

    @cached_property
    def _needed(self) -> frozenset[int]:
        """The layers that a row's own plan must have."""
        return frozenset(self._plan)

    @property
    @override
    def draft_steps(self) -> int:
        return self._steps

    @override
    def propose(
        self, rows: Sequence[RowDrafts], most: int, goes_on: GoesOn | None = None
    ) -> list[Guesses]:
        """Draft for the rows until ``goes_on`` returns False for the guesses so far."""
        drafts: list[_Draft] = [([], []) for _ in rows]
        proposed = [Guesses(*draft) for draft in drafts]
        reaches = [self.reach(one.row, most) for one in rows]
        for ahead in range(max(reaches)):
            able = [index for index, reach in enumerate(reaches) if reach > ahead]
            if ahead and goes_on and not goes_on([proposed[index] for index in able]):
                break
            self._step([(rows[index].row, drafts[index]) for index in able], ahead)
        return proposed

    def _step(self, rows: Sequence[tuple[Row, _Draft]], ahead: int) -> None:
        """Add to each row's draft the token ``ahead`` tokens after its next one."""
        start = self._engines.clock()
        logits = self._draft(
            [
                DraftRow(row.number, (tokens or row.token_ids)[-1], row.num_positions + ahead)
                for row, (tokens, _) in rows
            ]
        )
        for index, (row, (tokens, classes)) in enumerate(rows):
            token_id = logits.propose(index, row.sampler, ahead)
            tokens.append(token_id)
            classes.append(confidence_class(logits.probability(index, token_id)))
        self._steps += 1
        self._costs.add_draft(
            self.source,
            self._slots.num_rows,
            self._engines.clock() - start,
            is_first=self._slots.has_found_route,
        )

    def _draft(self, rows: Sequence[DraftRow]) -> StepLogits:
        return self._slots.draft(rows, self._plan)

    @override
    def reach(self, row: Row, most: int) -> int:
        """Return how many tokens, up to ``most``, the row's plan lets these layers draft."""
        index = len(row.token_ids) - 1  # of the generated token that is fed next
        plan = row.schedule.plan(index)
        if not self._needed.issubset(plan):
            return 0
        most = min(most, room_of(row))
        for count in range(1, most + 1):
            if row.schedule.plan(index + count) is not plan:
                return count - 1
        return most


class TrainedDrafter(LayerDrafter):
    """Proposes tokens that the bundle's trained draft layer predicts from the last pass's states.

    The layer has a KV cache of its own and needs no layer of the rows' plans, so it drafts at every
    depth.
    """

    @override
    def _draft(self, rows: Sequence[DraftRow]) -> StepLogits:
        return self._slots.draft_trained(rows)

    @override
    def reach(self, row: Row, most: int) -> int:
        return min(most, room_of(row))
