"""Run a bundle's prompts at every schedule: once for quality, repeatedly for speed.

Schedules take turns, one chunk of prompts each, so that drift of the machine affects all equally.
The pass that scores them is also the first that the meter times.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import ceil
from time import perf_counter

from ...runtime.generator import Generator
from ...runtime.measuring.cost import CostModel
from ...runtime.measuring.meter import NOT_TIMED, Ratio, Turns, measure
from ...runtime.schedule import ExitSchedule
from ...runtime.tokens.outputs import CompletionOutput, RequestOutput, ScoreOutput
from ...runtime.tokens.sampling import SamplingParams
from .config import EvaluationConfig
from .drafts import DraftRun
from .inputs import EncodedPrompt, PreparedBundle
from .metrics import Outcome

_WARMUP_TOKENS = 4
Advance = Callable[[str], None]  # called with a label after each chunk and schedule
_Key = tuple[str, str]  # "own", "full" (equally long texts) or "draft", and the name


@dataclass
class ScheduleRun:
    """All texts of one bundle at one schedule, in the order of the prompts.

    Speed-ups are nan if nothing was generated. With ``equal_lengths`` both are equal, because full
    depth generates the same number of tokens per prompt.
    """

    name: str  # the schedule as given
    schedule: ExitSchedule
    outcomes: list[Outcome] = field(default_factory=list)
    chunk_seconds: list[float] = field(default_factory=list)  # of generating, median of passes
    full_depth_seconds: list[float] = field(default_factory=list)  # of equally long texts
    speedup: Ratio = NOT_TIMED  # full depth's seconds ÷ this schedule's, prompts included
    token_speedup: Ratio = NOT_TIMED  # the same per token, as texts may differ in length

    @property
    def wall_seconds(self) -> float:
        """Time of all chunks including their prompts, without scoring the references."""
        return sum(self.chunk_seconds)

    @property
    def num_tokens(self) -> int:
        """Number of generated tokens, ends of text included."""
        return sum(len(outcome.layers_per_token) for outcome in self.outcomes)

    @property
    def num_layers_run(self) -> int:
        """Number of layers run for all tokens; a text's first token counts those of its prompt."""
        return sum(sum(outcome.layers_per_token) for outcome in self.outcomes)


def run_bundle(
    generator: Generator,
    prepared: PreparedBundle,
    config: EvaluationConfig,
    advance: Advance,
    drafts: Sequence[DraftRun] = (),
) -> list[ScheduleRun]:
    """Generate and score every prompt at every schedule; full depth first, then ``drafts``.

    Two chunks and two schedules run as: chunk 0 full, chunk 0 2x, chunk 1 full, chunk 1 2x. This
    repeats until the speed-ups are known, see `measure`. Each schedule first generates a few tokens
    as an unmeasured warm-up. With a temperature, prompt i has the seed ``config.seed`` + i at every
    schedule. With ``score_only`` nothing is generated. With ``equal_lengths``, full depth generates
    the same number of tokens per prompt after each schedule's chunk.
    """
    return _BundleRun(generator, prepared, config, advance, drafts).run()


class _BundleRun:
    def __init__(
        self,
        generator: Generator,
        prepared: PreparedBundle,
        config: EvaluationConfig,
        advance: Advance,
        drafts: Sequence[DraftRun],
    ) -> None:
        self._generator, self._prepared, self._config = generator, prepared, config
        self._advance, self._drafts = advance, drafts
        self._params = [
            SamplingParams.fixed(
                temperature=config.temperature,
                seed=config.seed + index,
                max_tokens=prepared.room(prompt),
            )
            for index, prompt in enumerate(prepared.prompts)
        ]
        self._runs = [ScheduleRun(name, schedule) for schedule, name in prepared.schedules.items()]
        self._num_chunks = ceil(len(self._params) / config.batch_size)

    def run(self) -> list[ScheduleRun]:
        if self._config.score_only:
            for item in range(self._num_chunks):
                for run in self._runs:
                    self._score(run, self._chunk(item), None)
            return self._runs
        self._warm_up()
        full = ("own", self._runs[0].name)
        compared = [(("own", run.name), self._reference(run)) for run in self._runs[1:]]
        drafted = [(("draft", draft.name), full) for draft in self._drafts]
        turns = measure(
            self._turn,
            [*compared, *drafted],
            items=self._num_chunks,
            seconds=self._config.seconds,
        )
        for run in self._runs:
            self._count_speed(run, turns)
        for draft in self._drafts:
            draft.count_speed(turns.ratio(("draft", draft.name), full))
            draft.chunk_seconds = turns.seconds(("draft", draft.name))
            draft.plain_seconds = turns.seconds(full)
        return self._runs

    def _chunk(self, item: int) -> slice:
        size = self._config.batch_size
        return slice(item * size, (item + 1) * size)

    def _reference(self, run: ScheduleRun) -> _Key:
        """Return the key of full depth's seconds with which ``run`` is compared."""
        is_equal = self._config.equal_lengths and run is not self._runs[0]
        return ("full", run.name) if is_equal else ("own", self._runs[0].name)

    def _warm_up(self) -> None:
        prompts = self._prepared.prompts[: self._config.batch_size]
        token_ids = [prompt.token_ids for prompt in prompts]
        num_tokens = min(_WARMUP_TOKENS, *map(self._prepared.room, prompts))
        params = SamplingParams.fixed(temperature=0.0, max_tokens=num_tokens)
        for schedule in self._prepared.schedules:
            self._generator.generate(token_ids, params, schedule=schedule)
        for draft in self._drafts:
            draft.warm_up(self._generator, token_ids, params)

    def _turn(self, item: int) -> dict[_Key, float]:
        """Generate chunk ``item`` at every schedule, and score it in the first pass."""
        chunk, full = self._chunk(item), self._runs[0]
        params, seconds = self._params[chunk], dict[_Key, float]()
        for run in self._runs:
            is_new = len(run.outcomes) <= chunk.start
            results, seconds["own", run.name] = self._generate(chunk, params, run.schedule)
            texts = [result.outputs[0] for result in results]
            for draft in self._drafts if run is full else ():
                token_ids = [prompt.token_ids for prompt in self._prepared.prompts[chunk]]
                seconds["draft", draft.name] = draft.run(
                    self._generator, token_ids, params, texts, is_first=item == 0, is_new=is_new
                )
                if is_new:
                    self._advance(f"{self._prepared.choice.label}, {draft.name}")
            if is_new:
                self._score(run, chunk, texts)
            if (key := self._reference(run)) not in seconds:
                seconds[key] = self._time_full_depth(run, chunk)
        return seconds

    def _generate(
        self, chunk: slice, params: Sequence[SamplingParams], schedule: ExitSchedule
    ) -> tuple[list[RequestOutput], float]:
        """Return the texts and the wall-clock seconds of the call."""
        token_ids = [prompt.token_ids for prompt in self._prepared.prompts[chunk]]
        start = perf_counter()
        results = self._generator.generate(token_ids, params, schedule=schedule)
        return results, perf_counter() - start

    def _time_full_depth(self, run: ScheduleRun, chunk: slice) -> float:
        """Time a chunk of ``run`` at full depth, forcing each text to the same length."""
        lengths = [len(outcome.layers_per_token) for outcome in run.outcomes[chunk]]
        forced = [
            chosen.model_copy(update={"max_tokens": length, "ignore_eos": True})
            for chosen, length in zip(self._params[chunk], lengths, strict=True)
        ]
        return self._generate(chunk, forced, self._runs[0].schedule)[1]

    def _score(
        self, run: ScheduleRun, chunk: slice, texts: Sequence[CompletionOutput] | None
    ) -> None:
        prompts = self._prepared.prompts[chunk]
        scores = self._generator.score(
            [prompt.token_ids for prompt in prompts],
            [prompt.target_ids for prompt in prompts],
            schedule=run.schedule,
        )
        completions: Sequence[CompletionOutput | None] = texts or [None] * len(prompts)
        run.outcomes += map(_outcome, prompts, scores, completions)
        self._advance(f"{self._prepared.choice.label}, {run.name}")

    def _count_speed(self, run: ScheduleRun, turns: Turns[_Key]) -> None:
        """Set the seconds and speed-ups of ``run``, unless they exceed what its layers allow."""
        full, reference = self._runs[0], self._reference(run)
        run.chunk_seconds = turns.seconds(("own", run.name))
        layers, tokens = full.num_layers_run, full.num_tokens
        if reference[0] == "full":
            run.full_depth_seconds = turns.seconds(reference)
            layers, tokens = run.schedule.num_layers * run.num_tokens, run.num_tokens
        on_device = self._generator.device is not None
        cost = CostModel(self._prepared.bundle.manifest, on_device=on_device)
        most = cost.most_speedup(run.schedule, layers / run.num_layers_run)
        run.speedup = turns.ratio(("own", run.name), reference).within(most, "layers allow")
        run.token_speedup = run.speedup.times(run.num_tokens / tokens)


def _outcome(
    prompt: EncodedPrompt, score: ScoreOutput, completion: CompletionOutput | None
) -> Outcome:
    """Return the scored reference with the generated text, if there is one."""
    token_ids: tuple[int, ...] = () if completion is None else completion.token_ids
    is_cut = completion is not None and completion.finish_reason == "length"
    return Outcome(
        text="" if completion is None else completion.text,
        token_ids=token_ids if is_cut else token_ids[:-1],
        is_cut=is_cut,
        layers_per_token=(score if completion is None else completion).layers_per_token,
        references=prompt.references,
        reference_tokens=prompt.reference_tokens,
        logprobs=score.logprobs,
    )
