"""Requests of one running batch each get the text that they get alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from random_requests import ArrivingRequest, draw, run_all, texts, together

from skipdec import (
    CapacityError,
    ClosedError,
    Generator,
    OpenOptions,
    SamplingParams,
    SkipDecError,
    UsageError,
)
from skipdec.engines.backends.ort import OrtBinding
from skipdec.runtime.kv.buffers import CachePair
from skipdec.runtime.kv.cache import SlotCache
from skipdec.runtime.scheduling.running_batch import RunningBatch
from skipdec.runtime.stitching.host.slot_stitcher import TokenGroup
from skipdec.runtime.tokens.sampler import Sampler


@pytest.fixture(scope="module", params=["int8", "none"])
def generator(request: pytest.FixtureRequest, exported: Callable[..., Path]) -> Iterator[Generator]:
    """Open six layers of int8, and of float32, whose rounding depends on the batch."""
    bundle = exported("pre_norm", quantize=request.param, kernels="auto")
    with Generator.open(bundle, threads=1, max_batch_size=4) as generator:
        yield generator


@pytest.mark.parametrize("seed", range(4))
def test_each_request_gets_the_text_it_gets_alone(generator: Generator, seed: int) -> None:
    """Draw random arrivals, lengths, schedules, completions, and long prompts in chunks."""
    wanted = draw(seed, 12)
    for one, output in zip(wanted, together(generator, wanted), strict=True):
        expected = one.alone(generator)
        assert texts(output) == texts(expected)
        assert output.schedule == expected.schedule


def test_prompts_at_different_depths_share_a_call(generator: Generator) -> None:
    """A layer that runs only part of a row must leave the rest of that row unchanged."""
    decay = "linear:max=4,min=2,horizon=5,prompt=decay"
    wanted = [
        ArrivingRequest(
            prompt, SamplingParams(temperature=0, max_tokens=4, ignore_eos=True), schedule, 0
        )
        for prompt, schedule in (([5, 6, 7, 8, 9, 10], "full"), ([11, 12, 13], decay))
    ]
    results = together(generator, wanted, max_prefill_tokens=64)
    assert [texts(output) for output in results] == [texts(one.alone(generator)) for one in wanted]


def test_a_cancelled_request_frees_its_slots_and_affects_no_other(
    generator: Generator,
) -> None:
    wanted = [
        ArrivingRequest(
            [5, 6, 7], SamplingParams(temperature=0, max_tokens=9, ignore_eos=True), "full", 0
        )
    ] * 3
    with generator.running_batch() as batch:
        numbers = [batch.add(one.prompt, one.params, schedule=one.schedule) for one in wanted]
        batch.step()
        batch.step()
        deltas = batch.abort(numbers[1])
        assert [delta.finish_reason for delta in deltas] == ["abort"]
        assert batch.stats().running == 2
        assert batch.abort(numbers[1]) == batch.abort(99) == []
        while batch.is_busy:
            batch.step()
        stats = batch.stats()
        assert (stats.submitted, stats.finished, stats.aborted, stats.failed) == (3, 2, 1, 0)
        assert stats.reserved_bytes == 0
        outputs = [batch.take(number) for number in numbers]
    assert texts(outputs[0]) == texts(outputs[2]) == texts(wanted[0].alone(generator))


@pytest.mark.parametrize("steps", [0, 1], ids=["first token", "later token"])
def test_nan_logits_end_only_their_row(
    generator: Generator, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
    sample = Sampler.sample

    samplers = dict[int, Sampler]()

    def spoiled(self: Sampler, logits: np.ndarray) -> object:
        samplers.setdefault(id(self), self)
        is_first = self is next(iter(samplers.values()))
        return sample(self, np.full_like(logits, np.nan) if is_first else logits)

    with generator.running_batch() as batch:
        numbers = [batch.add(prompt, params) for prompt in ([5, 6], [7, 8, 9])]
        for _ in range(steps):
            batch.step()
        monkeypatch.setattr(Sampler, "sample", spoiled)
        run_all(batch)
        monkeypatch.undo()
        failed, other = (batch.take(number) for number in numbers)
        assert (batch.stats().failed, batch.stats().finished) == (1, 1)
    assert failed.outputs[0].finish_reason == "error"
    assert "NaN" in str(failed.outputs[0].stop_reason)
    assert texts(other) == texts(generator.generate([[7, 8, 9]], params)[0])


def _broken(_: object) -> None:
    raise SkipDecError("engine layer_003", "ONNX Runtime failed to run it")


def test_a_failed_engine_ends_running_rows_and_waiting_ones_run(
    generator: Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)

    with generator.running_batch() as batch:
        first = batch.add([5, 6], params)
        batch.step()
        waiting = [batch.add([7, 8, 9], params) for _ in range(5)]
        with monkeypatch.context() as patch:
            patch.setattr(OrtBinding, "run", _broken)
            deltas = batch.step()
        assert [delta.request_index for delta in deltas] == [first]
        run_all(batch)
        assert "layer_003" in str(batch.take(first).outputs[0].stop_reason)
        outputs = [batch.take(number) for number in waiting]
    assert {str(texts(one)) for one in outputs} == {
        str(texts(generator.generate([[7, 8, 9]], params)[0]))
    }


@pytest.mark.parametrize("steps", [1, 2])
def test_a_row_that_ended_has_its_text_if_freeing_its_slots_fails(
    generator: Generator, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    """A row ends after its prompt or a step, and that in the last slot is to take its place."""
    long = SamplingParams(temperature=0, max_tokens=9, ignore_eos=True)
    vocabulary = tuple(range(generator.model.vocab_size))
    short = long.updated(stop_token_ids=vocabulary) if steps == 1 else long.updated(max_tokens=2)
    with generator.running_batch() as batch:
        numbers = [batch.add([5, 6], params) for params in (short, long, long, long, short)]
        with monkeypatch.context() as patch:
            patch.setattr(CachePair, "copy_row", lambda *_: _broken(None))
            deltas = [delta for _ in range(steps) for delta in batch.step()]
        ended = [delta.finish_reason for delta in deltas if delta.finish_reason]
        assert ended == ["stop" if steps == 1 else "length", "error", "error", "error"]
        run_all(batch)
        first, *_, last = (batch.take(number).outputs[0] for number in numbers)
        assert first.token_ids == last.token_ids
        stats = batch.stats()
        assert (stats.finished, stats.failed, stats.reserved_bytes) == (2, 3, 0)


def test_a_failed_step_ends_a_partly_run_prompt(
    generator: Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The failure frees the memory of the prompt's chunks, so the prompt cannot continue."""
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)

    with generator.running_batch(max_prefill_tokens=16) as batch:
        numbers = [batch.add([5, 6], params)]
        batch.step()
        numbers += [batch.add([7] * 40, params), batch.add([7, 8, 9], params)]
        batch.step()
        assert batch.step() == []  # the first chunk of 40 tokens
        with monkeypatch.context() as patch:
            patch.setattr(OrtBinding, "run", _broken)
            assert {delta.request_index for delta in batch.step()} == set(numbers[:2])
        run_all(batch)
        running, partly_run, waiting = (batch.take(number).outputs[0] for number in numbers)
        assert batch.stats().reserved_bytes == 0
    assert running.finish_reason == partly_run.finish_reason == "error"
    assert waiting.token_ids == generator.generate([[7, 8, 9]], params)[0].outputs[0].token_ids


def test_the_third_failure_in_a_row_is_raised(
    generator: Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reason(batch: RunningBatch) -> str | None:
        batch.add([5, 6], SamplingParams(temperature=0, max_tokens=1))
        reason = batch.step()[0].finish_reason
        assert batch.step() == []  # an idle step does not count as a success
        return reason

    with generator.running_batch() as batch:
        with monkeypatch.context() as patch:
            patch.setattr(OrtBinding, "run", _broken)
            assert [reason(batch) for _ in range(2)] == ["error"] * 2
        assert reason(batch) == "length"  # a success resets the count
        monkeypatch.setattr(OrtBinding, "run", _broken)
        assert [reason(batch) for _ in range(2)] == ["error"] * 2
        with pytest.raises(SkipDecError, match="layer_003"):
            reason(batch)


@pytest.mark.parametrize("steps", [0, 1], ids=["prompt", "step"])
def test_an_interrupted_step_ends_running_rows_only(
    generator: Generator, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    """The rows' keys and values may be wrong, so another step could write wrong tokens."""
    params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)

    def interrupted(self: OrtBinding) -> None:
        raise KeyboardInterrupt

    with generator.running_batch() as batch:
        first = batch.add([5, 6], params)
        for _ in range(steps):
            batch.step()
        with monkeypatch.context() as patch:
            patch.setattr(OrtBinding, "run", interrupted)
            with pytest.raises(KeyboardInterrupt):
                batch.step()
        assert not batch.is_busy
        second = batch.add([7, 8, 9], params)
        run_all(batch)
        ended, other = batch.take(first).outputs[0], batch.take(second)
    assert (ended.finish_reason, ended.stop_reason) == ("error", "KeyboardInterrupt")
    assert texts(other) == texts(generator.generate([[7, 8, 9]], params)[0])


def test_a_closed_batch_runs_nothing_and_holds_no_memory(generator: Generator) -> None:
    params = SamplingParams(temperature=0, max_tokens=2)
    with generator.running_batch() as batch:
        ended = batch.add([5, 6], params)
        run_all(batch)
        batch.add([5, 6], params)
    for use in (batch.step, lambda: batch.add([5], params)):
        with pytest.raises(ClosedError, match=r"running batch \| is closed"):
            use()
        with generator.running_batch(), pytest.raises(ClosedError):
            use()
    assert batch.stats().reserved_bytes == 0
    assert batch.take(ended).finished
    with pytest.raises(UsageError, match="unknown, or was taken"):
        batch.has_ended(ended)


def test_a_request_that_can_never_run_is_refused_at_once(
    exported: Callable[..., Path],
) -> None:
    bundle = exported("pre_norm", kernels="auto")
    small = Generator.open(bundle, threads=1, max_batch_size=2, kv_memory=50_000)
    with small, small.running_batch() as batch:
        with pytest.raises(CapacityError, match="kv_memory allows 50,000"):
            batch.add(list(range(4, 34)), SamplingParams(max_tokens=30, n=2), schedule="full")
        with pytest.raises(CapacityError, match=r"^n \| is 3; "):
            batch.add([5], SamplingParams(max_tokens=1, n=3))
        with pytest.raises(UsageError, match="has not ended"):
            batch.take(batch.add([5], SamplingParams(max_tokens=2)))
        assert batch.stats().submitted == 1


def test_scarce_memory_delays_requests_without_changing_texts(
    exported: Callable[..., Path],
) -> None:
    """Rows wait for memory, and an admitted row always has enough."""
    bundle = exported("pre_norm", quantize="int8", kernels="auto")
    wanted = draw(5, 12)
    with Generator.open(bundle, threads=1, max_batch_size=4) as roomy:
        alone = [texts(one.alone(roomy)) for one in wanted]
    with Generator.open(bundle, threads=1, max_batch_size=4, kv_memory=400_000) as tight:
        assert [texts(output) for output in together(tight, wanted)] == alone


def test_keywords_change_options(generator: Generator) -> None:
    options = OpenOptions(max_prefill_tokens=32, max_model_len=20)
    with generator.running_batch(options, max_prefill_tokens=16) as batch:
        assert (batch.limits.chunk_tokens, batch.limits.max_positions) == (16, 20)


def _moves_too_little(monkeypatch: pytest.MonkeyPatch) -> None:
    copy = CachePair.copy_row
    monkeypatch.setattr(
        CachePair, "copy_row", lambda self, pool, a, b, length: copy(self, pool, a, b, length - 1)
    )


def _changes_groups(
    monkeypatch: pytest.MonkeyPatch, change: Callable[[TokenGroup], TokenGroup]
) -> None:
    of = TokenGroup.of
    monkeypatch.setattr(TokenGroup, "of", lambda *given, **more: change(of(*given, **more)))


def _gathers_backwards(monkeypatch: pytest.MonkeyPatch) -> None:
    def backwards(group: TokenGroup) -> TokenGroup:
        return group if group.tokens is None else replace(group, tokens=group.tokens[::-1])

    _changes_groups(monkeypatch, backwards)


def _takes_other_lengths(monkeypatch: pytest.MonkeyPatch) -> None:
    _changes_groups(monkeypatch, lambda group: replace(group, rows=range(len(group.counts))))


def _retires_a_step_late(monkeypatch: pytest.MonkeyPatch) -> None:
    leave, last = SlotCache.leave, dict[int, Iterable[int]]()

    def late(self: SlotCache, row: int, layers: Iterable[int]) -> None:
        leave(self, row, last.pop(row, ()))
        if isinstance(layers, range):  # the row has ended
            leave(self, row, layers)
        else:
            last[row] = layers

    monkeypatch.setattr(SlotCache, "leave", late)


@pytest.mark.parametrize(
    "mutate", [_moves_too_little, _gathers_backwards, _takes_other_lengths, _retires_a_step_late]
)
def test_a_wrong_move_gather_length_or_release_changes_texts(
    mutate: Callable[[pytest.MonkeyPatch], None],
    generator: Generator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The tests above would therefore detect these mistakes."""
    wanted = [one for seed in range(3) for one in draw(seed, 12)]
    expected = [texts(one.alone(generator)) for one in wanted]
    with monkeypatch.context() as patch:
        mutate(patch)
        try:
            results = [texts(output) for output in together(generator, wanted)]
        except ValueError:  # a layer that no token runs
            results = []
    assert results != expected
