"""A draft layer reads its row's states of the last pass and changes no text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from compared_texts import PROMPTS, greedy, run_requests, shown
from draft_layers import write_draft_layer
from literal_entries import LiteralDrafts
from random_requests import run_all
from text_bundles import STRUCTURE, copy_with_tokenizer

from skipdec import Generator
from skipdec.engines.errors import CapacityError, UsageError
from skipdec.engines.kernels.library import find_library
from skipdec.exporter.config import ExportConfig
from skipdec.exporter.pipeline.exporting import export
from skipdec.runtime.drafting.acceptance import UNKNOWN, Guesses
from skipdec.runtime.scheduling.drafters import RowDrafts
from skipdec.runtime.scheduling.layer_drafter import GoesOn, TrainedDrafter
from skipdec.runtime.stitching.protocol import DraftRow
from skipdec.runtime.stitching.states import HeldStates

pytestmark = pytest.mark.skipif(find_library() is None, reason="the kernels were not compiled")

params = partial(greedy, max_tokens=30, logprobs=None)


@pytest.fixture(scope="module")
def bundle(checkpoint: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    source = copy_with_tokenizer(checkpoint(STRUCTURE), folder / "checkpoint")
    config = ExportConfig(
        model=str(source),
        output=folder / "bundle",
        quantize="int8",
        kernels="skipdec",
        draft_layer=write_draft_layer(folder / "layer", str(source)),
        verify=False,
    )
    return export(config).output


class Watch:
    """Records what trained drafts propose after which text, and the tokens fed to them."""

    def __init__(self) -> None:
        self.proposed: list[tuple[list[int], list[int], list[int]]] = []  # text, entries, guesses
        self._entries: dict[int, list[int]] = {}  # positions, by row

    def on(self, patch: pytest.MonkeyPatch) -> None:
        """Record all generators."""
        propose, feed, drop = TrainedDrafter.propose, HeldStates.feed, HeldStates.drop
        watch = self

        def proposing(
            self: TrainedDrafter, rows: Sequence[RowDrafts], most: int, *goes_on: GoesOn
        ) -> list[Guesses]:
            found = propose(self, rows, most, *goes_on)
            for one, guesses in zip(rows, found, strict=True):
                shown = watch._entries.get(one.row.number, [])
                if guesses.tokens:
                    watch.proposed.append(([*one.tokens], [*shown], [*guesses.tokens]))
            return found

        def feeding(self: HeldStates[Any], rows: Sequence[DraftRow]) -> object:
            for row in rows:
                if self._is_first(row):
                    new = range(self._held[row.row].position + 1, row.position + 1)
                    watch._entries.setdefault(row.row, []).extend(new)
            return feed(self, rows)

        def dropping(self: HeldStates[Any], row: int) -> None:
            watch._entries.pop(row, None)
            drop(self, row)

        patch.setattr(TrainedDrafter, "propose", proposing)
        patch.setattr(HeldStates, "feed", feeding)
        patch.setattr(HeldStates, "drop", dropping)


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    made = Watch()
    made.on(monkeypatch)
    return made


OPTIONS: dict[str, dict[str, Any]] = {
    "one row": {"max_batch_size": 1},
    "rows together": {"max_batch_size": 3},
    "prompts in chunks": {"max_batch_size": 2, "max_prefill_tokens": 16},
}
LONG = "Once upon a time, in two chunks"


@pytest.mark.parametrize("draft", ["trained,adapt=no,tokens=3", "lookup+trained,adapt=no,tokens=3"])
@pytest.mark.parametrize("options", OPTIONS)
def test_guesses_equal_those_of_a_literal_implementation(
    options: str, draft: str, bundle: Path, watch: Watch
) -> None:
    """Wrong guesses, other rows and drafts by n-grams in between make no difference."""
    with Generator.open(bundle, threads=1, **OPTIONS[options]) as generator:
        prompts = [*PROMPTS[:4], LONG, LONG]  # the last one hits the prefix of the other
        generator.generate(prompts, params(), draft=draft, schedule="full")
        several = params(n=3, temperature=1.0, top_k=1)  # greedy in effect
        generator.generate(PROMPTS[4], several, draft=draft, schedule="full")
    literal = LiteralDrafts(bundle)
    assert len(watch.proposed) > 20
    for text, entries, guesses in watch.proposed[:: max(1, len(watch.proposed) // 24)]:
        assert literal.guess(text, entries, len(guesses)) == guesses


def test_drafts_change_no_text_at_any_depth(bundle: Path, watch: Watch) -> None:
    requests = [params(logprobs=2), params(temperature=0.9, seed=3, logprobs=2)] * 3
    with Generator.open(bundle, threads=1, max_batch_size=3) as generator:
        ordinary, _ = run_requests(generator, requests)
        drafted, _ = run_requests(generator, requests, draft="own+trained,adapt=no")
    assert shown(drafted) == shown(ordinary)
    assert len(watch.proposed) > 30


def test_rows_that_join_after_a_long_pass_draft_beside_its_row(
    bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pad rows to the accepted tokens, which may be more than any pass has fed."""
    late = [params(max_tokens=9)] * 5
    with Generator.open(bundle, threads=1, max_batch_size=6) as generator:
        expected = generator.generate(PROMPTS, [params(), *late], schedule="full")
        text, propose = expected[0].outputs[0].token_ids, TrainedDrafter.propose

        def right(
            self: TrainedDrafter, rows: Sequence[RowDrafts], most: int, *goes_on: GoesOn
        ) -> list[Guesses]:
            """Propose right guesses to the first row while it is alone."""
            found = propose(self, rows, most, *goes_on)
            if len(rows) > 1:
                return found
            known = len(rows[0].row.token_ids)
            following = text[known : known + 7]
            return [Guesses(following, (UNKNOWN,) * len(following))]

        monkeypatch.setattr(TrainedDrafter, "propose", right)
        with generator.running_batch(draft="trained,adapt=no", schedule="full") as batch:
            numbers = [batch.add(PROMPTS[0], params())]
            batch.step()
            batch.step()
            assert batch.stats().accepted_draft_tokens == 7
            numbers += [batch.add(*each) for each in zip(PROMPTS[1:], late, strict=True)]
            run_all(batch)
            assert shown([batch.take(number) for number in numbers]) == shown(expected)


def test_states_of_another_token_change_the_guesses(bundle: Path, watch: Watch) -> None:
    """A mutation lets each entry read the states of one token too late."""
    hold = HeldStates.hold

    def late(self: HeldStates[Any], row: int, position: int, tokens: Any, states: Any) -> None:  # noqa: ANN401
        hold(self, row, position, tokens, np.roll(states, -1, axis=0))

    with (
        patch.object(HeldStates, "hold", late),
        Generator.open(bundle, threads=1) as generator,
    ):
        draft = "trained,adapt=no,tokens=3"
        generator.generate(PROMPTS, params(), draft=draft, schedule="full")
    literal = LiteralDrafts(bundle)
    wrong = [
        guesses
        for text, entries, guesses in watch.proposed[::5]
        if literal.guess(text, entries, len(guesses)) != guesses
    ]
    assert wrong


def test_memory_of_the_draft_layer_is_reserved_and_freed(bundle: Path) -> None:
    with Generator.open(bundle, threads=1) as generator:
        held = []
        for draft in ("off", "trained"):
            with generator.running_batch(draft=draft) as batch:
                batch.add(PROMPTS[0], params(max_tokens=20))
                batch.step()
                held.append(batch.stats().reserved_bytes)
                run_all(batch)
                assert batch.stats().reserved_bytes == 0
    assert held[0] < held[1] < 1.5 * held[0], "one more layer holds the generated tokens"


def test_a_request_that_fits_only_without_drafts_is_refused(
    bundle: Path,
) -> None:
    with Generator.open(bundle, threads=1) as generator:
        generator.generate(PROMPTS[0], params(max_tokens=50))
        needed = generator.kv_memory.planned
    with Generator.open(bundle, threads=1, kv_memory=needed) as generator:
        generator.generate(PROMPTS[0], params(max_tokens=50))
        with pytest.raises(CapacityError, match="bytes of KV cache"):
            generator.generate(PROMPTS[0], params(max_tokens=50), draft="trained")


def test_a_bundle_without_a_draft_layer_names_the_command_for_one(
    exported: Callable[..., Path],
) -> None:
    bundle = exported("pre_norm", kernels="skipdec", quantize="int8")
    with pytest.raises(UsageError, match=r"trained needs a draft layer.*tune --draft-layer"):
        Generator.open(bundle, draft="trained")
