"""What is run for a fit of drafts: texts at full depth, proposals of layers, costs, and times."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter

from typing_extensions import override

from ....engines.errors import SkipDecError
from ....runtime.drafting.acceptance import Guesses
from ....runtime.drafting.config import DraftConfig
from ....runtime.drafting.memory import DraftMemory
from ....runtime.generator import Generator
from ....runtime.measuring.drafted_runs import run_with_drafts
from ....runtime.measuring.passes import measure_pass_costs
from ....runtime.schedule import ExitSchedule
from ....runtime.scheduling.drafters import Drafter, RowDrafts, WrappedDrafter
from ....runtime.tokens.sampling import SamplingParams
from .config import LosslessConfig, alone
from .simulation import Text

Proposals = dict[tuple[tuple[int, ...], int], Sequence[int]]
"""Proposed tokens by the row's prompt and the number of tokens it has written."""

_COST_TOKENS = 64  # of each text that measures the cost of passes of one length


class Recorder(WrappedDrafter):
    """Keeps what another drafter proposes, and proposes nothing, so that every place is seen."""

    def __init__(self, drafter: Drafter, proposals: Proposals) -> None:
        super().__init__(drafter)
        self._proposals = proposals

    @override
    def propose(self, rows: Sequence[RowDrafts], most: int) -> list[Guesses]:
        for one, guesses in zip(rows, super().propose(rows, most), strict=True):
            place = (one.row.request.prompt_token_ids, len(one.row.token_ids))
            self._proposals[place] = guesses.tokens
        return [Guesses()] * len(rows)


class Runs:
    """Runs of one generator at full depth, one text at a time, with the parameters of a fit."""

    def __init__(self, generator: Generator, config: LosslessConfig, max_tokens: int) -> None:
        self._generator = generator
        self._params = SamplingParams.fixed(
            temperature=config.temperature, max_tokens=max_tokens, seed=config.seed
        )
        self._max_tokens = max_tokens
        self._full = ExitSchedule.full(generator.model.num_layers)

    def texts(self, prompts: Sequence[tuple[int, ...]]) -> list[Text]:
        """Return each prompt's text at full depth without drafts, several rows at a time."""
        requests = self._generator.make_requests([list(one) for one in prompts], self._params)
        outputs = self._generator.generate_requests(
            requests, [self._full] * len(requests), draft="off"
        )
        return [
            Text(prompt, output.outputs[0].token_ids, self._max_tokens)
            for prompt, output in zip(prompts, outputs, strict=True)
        ]

    def record(self, part: str, texts: Sequence[Text]) -> tuple[Proposals, float]:
        """Return what ``part`` proposes at every place of ``texts``, and the cost of its step.

        ``part`` is a `source_name`.
        """
        proposals: Proposals = {}
        memory = DraftMemory()
        for text in texts:
            run_with_drafts(
                self._generator,
                [text.prompt],
                self._params,
                schedule=self._full,
                draft=str(alone(part)),
                memory=memory,
                wrap=lambda drafter: Recorder(drafter, proposals),
            )
        return proposals, memory.costs.draft_cost(part, 1, 0.0)

    def pass_costs(self, prompt: tuple[int, ...]) -> tuple[float, ...]:
        """Return the cost of passes over 1 to 8 tokens of one row, in passes over one."""
        room = self._generator.model.max_seq_len - len(prompt)
        return measure_pass_costs(self._generator, prompt, min(_COST_TOKENS, room))

    def seconds(self, draft: DraftConfig | None, memory: DraftMemory, text: Text) -> float:
        """Return the seconds of a text, with what ``memory`` learned before.

        Raises SkipDecError if the text differs from that without drafts.
        """
        name = "off" if draft is None else str(draft)
        requests = self._generator.make_requests([list(text.prompt)], self._params)
        start = perf_counter()
        (output,) = self._generator.generate_requests(
            requests, [self._full], draft=name, draft_memory=memory
        )
        seconds = perf_counter() - start
        if output.outputs[0].token_ids != text.tokens:
            raise SkipDecError("draft", f"{name} changed a text, which it must not; report this")
        return seconds
