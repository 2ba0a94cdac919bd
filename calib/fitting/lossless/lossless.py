"""``fit --lossless``: find the drafts that make full depth fastest on the user's own prompts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from ....engines.errors import SkipDecError
from ....engines.host.events import Events
from ....engines.host.installation import own_version
from ....engines.host.processor import processor_name
from ....runtime.drafting.bundle import DraftFile
from ....runtime.drafting.config import MAX_DRAFT_TOKENS, DraftConfig
from ....runtime.drafting.memory import DraftMemory
from ....runtime.generator import Generator, OpenGenerator
from ....runtime.measuring.meter import Ratio, measure
from .config import LosslessConfig, LosslessInputs, prepare, source_name
from .recording import Proposals, Runs
from .simulation import (
    Costs,
    Lookup,
    OwnNGrams,
    Recorded,
    Simulated,
    Source,
    SourceAcceptance,
    Text,
    acceptance,
    simulate,
    teach,
)

ROWS = 8  # whose texts are generated together, before anything is measured
_TIMED = 3  # candidates of different kinds, the best of the simulation
LEAST_GAIN = 1.03


@dataclass(frozen=True)
class Candidate:
    """Drafts, what they came to in the simulation, and their measured gain if they were timed.

    ``gain`` is the time of whole calls at full depth without drafts ÷ that with them;
    ``simulated`` is of the steps alone.
    """

    draft: DraftConfig
    simulated: Simulated
    gain: Ratio | None = None

    @property
    def gained(self) -> float:
        """The measured gain; 0 where there is none, or other work disturbed it."""
        return self.gain.value if self.gain is not None and not self.gain.disturbed else 0.0


@dataclass(frozen=True)
class LosslessFit:
    """The candidates and the one with the best measured gain.

    Those that were timed come first; both they and the others are ordered by simulated gain.
    """

    config: LosslessConfig
    inputs: LosslessInputs
    costs: Costs
    acceptance: Mapping[str, SourceAcceptance]  # by part
    candidates: tuple[Candidate, ...]
    chosen: Candidate

    def draft_file(self, *, threads: int | None = None) -> DraftFile:
        """Return the content of draft.json; ``threads`` is the caller's number of threads."""
        chosen = self.chosen
        parts = [source_name(part, chosen.draft.head) for part in chosen.draft.parts]
        costs = {
            "threads": threads,
            "rows": 1,
            "passes": [round(cost, 4) for cost in self.costs.passes],
            "draft_steps": {
                part: round(self.costs.steps[part], 4) for part in parts if part in self.costs.steps
            },
        }
        measured: dict[str, Any] = {
            "acceptance": {part: asdict(self.acceptance[part]) for part in parts},
            "costs": {processor_name(): costs},
            "data": {
                "name": self.config.data.path.name,
                "prompts": len(self.inputs.measured),
                "sha256": self.inputs.digest,
                "teaching": len(self.inputs.teaching),
                "temperature": self.config.temperature,
            },
            "gain": chosen.gained,
            "simulated_gain": chosen.simulated.gain,
            "skipdec": own_version(),
            "tokens_per_pass": chosen.simulated.drafts.tokens_per_pass,
        }
        return DraftFile(chosen.draft, measured)


def fit_drafts(
    config: LosslessConfig,
    open_generator: OpenGenerator | None = None,
    events: Events | None = None,
) -> LosslessFit:
    """Measure acceptance and costs, simulate the candidates, time the best, choose one.

    Texts are those of full depth in any case; only time differs. N-grams are taught by the first
    half of the prompts' texts, and everything is measured on the second half, one row at a time.
    ``open_generator`` opens a bundle for 8 rows; the default is `Generator.open`.

    Raises SkipDecError if nothing is faster, and the errors of ``prepare`` before any work.
    """
    inputs = prepare(config)
    events = events or Events()
    open_generator = open_generator or partial(Generator.open, max_batch_size=ROWS)
    with open_generator(config.bundle) as generator:
        return _Fitting(config, inputs, Runs(generator, config, inputs.max_tokens), events).run()


class _Fitting:
    """One run of `fit_drafts`."""

    def __init__(
        self, config: LosslessConfig, inputs: LosslessInputs, runs: Runs, events: Events
    ) -> None:
        self._config, self._inputs, self._runs, self._events = config, inputs, runs, events
        self._proposals: dict[str, Proposals] = {}
        self._teaching: list[Text] = []

    def run(self) -> LosslessFit:
        """Return the candidates and the best. Raises SkipDecError if nothing is faster."""
        inputs, events = self._inputs, self._events
        events.stage("generating")
        self._teaching = self._runs.texts(inputs.teaching)
        texts = self._runs.texts(inputs.measured)
        costs = self._measure(texts)
        parts = dict.fromkeys(
            source_name(part, draft.head) for draft in inputs.candidates for part in draft.parts
        )
        shares = {part: acceptance(self._source(part), texts, MAX_DRAFT_TOKENS) for part in parts}
        events.stage("simulating", len(inputs.candidates))
        candidates = []
        for draft in inputs.candidates:
            candidates.append(Candidate(draft, simulate(draft, self._source, texts, costs)))
            events.advance(str(draft))
        candidates.sort(key=lambda one: -round(one.simulated.gain, 2))  # stable: simpler ones first
        best = _best_of_kinds(candidates)
        timed = self._time(best, texts)
        chosen = max(timed, key=lambda one: one.gained)
        _require_gain(chosen)
        every = (*timed, *(one for one in candidates if one not in best))
        return LosslessFit(self._config, inputs, costs, shares, every, chosen)

    def _measure(self, texts: Sequence[Text]) -> Costs:
        """Record what layers propose, and return what passes and draft steps cost."""
        layers = list(
            dict.fromkeys(
                source_name(part, draft.head)
                for draft in self._inputs.candidates
                for part in draft.parts
                if part.runs_layers
            )
        )
        self._events.stage("recording", len(layers) + 1)
        passes = self._runs.pass_costs(texts[0].prompt)
        self._events.advance("costs of passes")
        steps: dict[str, float] = {}
        for part in layers:
            self._proposals[part], steps[part] = self._runs.record(part, texts)
            self._events.advance(part)
        return Costs(passes, steps)

    def _source(self, part: str) -> Source:
        if part == "own":
            return OwnNGrams(self._teaching)
        return Lookup() if part == "lookup" else Recorded(self._proposals[part])

    def _time(self, candidates: Sequence[Candidate], texts: Sequence[Text]) -> list[Candidate]:
        """Time ``candidates`` and full depth without drafts in turn, text by text.

        N-grams begin anew with each pass through the texts; what was learned of costs stays.
        """
        self._events.stage("timing")
        drafts = {"off": None, **{str(one.draft): one.draft for one in candidates}}
        memories = {name: DraftMemory() for name in drafts}

        def turn(item: int) -> dict[str, float]:
            for memory in memories.values() if item == 0 else ():
                memory.tables.clear()
                teach(memory.tables.shared(), self._teaching)
            return {
                name: self._runs.seconds(draft, memories[name], texts[item])
                for name, draft in drafts.items()
            }

        turn(0)  # warms up
        pairs = [(str(one.draft), "off") for one in candidates]
        turns = measure(turn, pairs, items=len(texts), seconds=self._config.seconds)
        return [
            replace(
                one,
                gain=turns.ratio(str(one.draft), "off").within(
                    MAX_DRAFT_TOKENS + 1, "passes allow"
                ),
            )
            for one in candidates
        ]


def _best_of_kinds(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return the first candidate of each kind, at most three; ``candidates`` come best first.

    Kinds are e.g. own n-grams, layers, and layers behind own n-grams: candidates of one kind gain
    nearly the same, and the simulation leaves out what the host does.
    """
    kinds: dict[tuple[str, ...], Candidate] = {}
    for one in candidates:
        kind = tuple("layers" if part.runs_layers else part.name for part in one.draft.parts)
        kinds.setdefault(kind, one)
    return list(kinds.values())[:_TIMED]


def _require_gain(best: Candidate) -> None:
    if best.gained < LEAST_GAIN:
        raise SkipDecError(
            "fit --lossless",
            f"nothing is faster: the best, {best.draft}, was measured at {best.gain} of full "
            f"depth's speed (simulated: {best.simulated.gain:.2f}×); needed: {LEAST_GAIN}×; run "
            "without drafts, or train a draft layer (skipdec tune --draft-layer)",
        )
