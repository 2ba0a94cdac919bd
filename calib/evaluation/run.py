"""Generate and time one bundle's texts, alternating schedules so that drift affects all alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter

from ...runtime.generator import Generator
from ...runtime.schedule import ExitSchedule
from ...runtime.tokens.outputs import CompletionOutput, RequestOutput, ScoreOutput
from ...runtime.tokens.sampling import SamplingParams
from .inputs import PreparedBundle
from .metrics import Outcome
from .prompts import EncodedPrompt

_WARMUP_TOKENS = 4

Advance = Callable[[str], None]  # called with a label after each chunk and schedule


@dataclass
class ScheduleRun:
    """All texts of one bundle at one schedule, in the order of the prompts."""

    name: str  # the schedule as given
    schedule: ExitSchedule
    outcomes: list[Outcome] = field(default_factory=list)
    chunk_seconds: list[float] = field(default_factory=list)  # wall-clock of generating each chunk
    full_depth_seconds: list[float] = field(default_factory=list)  # of equally long texts

    @property
    def wall_seconds(self) -> float:
        """Time of all chunks including their prompts, without scoring the references."""
        return sum(self.chunk_seconds)

    @property
    def num_tokens(self) -> int:
        """Number of generated tokens, ends of text included."""
        return sum(len(outcome.layers_per_token) for outcome in self.outcomes)

    @property
    def seconds_per_token(self) -> float:
        """Wall-clock seconds per generated token, over all rows of a chunk together."""
        return self.wall_seconds / self.num_tokens


def num_steps(prepared: PreparedBundle, batch_size: int) -> int:
    """Return the number of times ``run_bundle`` advances: chunks × schedules."""
    return len(range(0, len(prepared.prompts), batch_size)) * len(prepared.schedules)


def run_bundle(
    generator: Generator,
    prepared: PreparedBundle,
    *,
    batch_size: int,
    temperature: float,
    seed: int,
    advance: Advance,
    score_only: bool = False,
    equal_lengths: bool = False,
) -> list[ScheduleRun]:
    """Generate and score every prompt at every schedule; full depth first.

    Two chunks and two schedules run as: chunk 0 full, chunk 0 2x, chunk 1 full, chunk 1 2x.
    Each schedule first generates a few tokens as an unmeasured warm-up. With a temperature, prompt
    i has the seed ``seed`` + i at every schedule. ``score_only`` generates nothing.
    ``equal_lengths``: after each schedule's chunk, full depth generates as many tokens per prompt.
    """
    params = [
        SamplingParams(temperature=temperature, seed=seed + index, max_tokens=prepared.room(prompt))
        for index, prompt in enumerate(prepared.prompts)
    ]
    runs = [ScheduleRun(name, schedule) for schedule, name in prepared.schedules.items()]
    if not score_only:
        _warm_up(generator, prepared, batch_size)
    for start in range(0, len(params), batch_size):
        chunk = slice(start, start + batch_size)
        for run in runs:
            if score_only:
                _score_chunk(generator, run, prepared.prompts[chunk])
            else:
                _run_chunk(generator, run, prepared.prompts[chunk], params[chunk])
                if equal_lengths and run is not runs[0]:
                    _time_full_depth(generator, run, prepared.prompts[chunk], params[chunk])
            advance(f"{prepared.choice.label}, {run.name}")
    return runs


def _warm_up(generator: Generator, prepared: PreparedBundle, batch_size: int) -> None:
    prompts = prepared.prompts[:batch_size]
    num_tokens = min(_WARMUP_TOKENS, *map(prepared.room, prompts))
    params = SamplingParams(temperature=0.0, max_tokens=num_tokens)
    for schedule in prepared.schedules:
        generator.generate([prompt.token_ids for prompt in prompts], params, schedule=schedule)


def _run_chunk(
    generator: Generator,
    run: ScheduleRun,
    prompts: Sequence[EncodedPrompt],
    params: Sequence[SamplingParams],
) -> None:
    results, seconds = _generate(generator, prompts, params, run.schedule)
    run.chunk_seconds.append(seconds)
    scores = _scores(generator, run, prompts)
    run.outcomes += [
        _outcome(prompt, result.outputs[0], score)
        for prompt, result, score in zip(prompts, results, scores, strict=True)
    ]


def _time_full_depth(
    generator: Generator,
    run: ScheduleRun,
    prompts: Sequence[EncodedPrompt],
    params: Sequence[SamplingParams],
) -> None:
    """Time ``run``'s latest chunk at full depth, forcing each text to the same length."""
    lengths = [len(outcome.layers_per_token) for outcome in run.outcomes[-len(prompts) :]]
    forced = [
        chosen.model_copy(update={"max_tokens": length, "ignore_eos": True})
        for chosen, length in zip(params, lengths, strict=True)
    ]
    full = ExitSchedule.full(run.schedule.num_layers)
    run.full_depth_seconds.append(_generate(generator, prompts, forced, full)[1])


def _generate(
    generator: Generator,
    prompts: Sequence[EncodedPrompt],
    params: Sequence[SamplingParams],
    schedule: ExitSchedule,
) -> tuple[list[RequestOutput], float]:
    """Return the texts and the wall-clock seconds of the call."""
    token_ids = [prompt.token_ids for prompt in prompts]
    start = perf_counter()
    results = generator.generate(token_ids, params, schedule=schedule)
    return results, perf_counter() - start


def _score_chunk(generator: Generator, run: ScheduleRun, prompts: Sequence[EncodedPrompt]) -> None:
    scores = _scores(generator, run, prompts)
    run.outcomes += [
        Outcome(
            text="",
            token_ids=(),
            is_cut=False,
            layers_per_token=score.layers_per_token,
            references=prompt.references,
            reference_tokens=prompt.reference_tokens,
            logprobs=score.logprobs,
        )
        for prompt, score in zip(prompts, scores, strict=True)
    ]


def _scores(
    generator: Generator, run: ScheduleRun, prompts: Sequence[EncodedPrompt]
) -> list[ScoreOutput]:
    return generator.score(
        [prompt.token_ids for prompt in prompts],
        [prompt.target_ids for prompt in prompts],
        schedule=run.schedule,
    )


def _outcome(prompt: EncodedPrompt, completion: CompletionOutput, score: ScoreOutput) -> Outcome:
    is_cut = completion.finish_reason == "length"
    return Outcome(
        text=completion.text,
        token_ids=completion.token_ids if is_cut else completion.token_ids[:-1],
        is_cut=is_cut,
        layers_per_token=completion.layers_per_token,
        references=prompt.references,
        reference_tokens=prompt.reference_tokens,
        logprobs=score.logprobs,
    )
