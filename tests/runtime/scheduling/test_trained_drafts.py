"""The draft layer and the narrow head change no text, and draft from the whole text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from unittest.mock import patch

import pytest
from compared_texts import PROMPTS, greedy
from draft_layers import write_draft_layer
from random_requests import run_all
from text_bundles import STRUCTURE, copy_with_tokenizer

from skipdec import Generator
from skipdec.engines.errors import CapacityError, UsageError
from skipdec.engines.kernels.library import find_library
from skipdec.exporter.config import ExportConfig
from skipdec.exporter.pipeline.exporting import export
from skipdec.runtime.drafting.acceptance import Guesses
from skipdec.runtime.scheduling.drafters import RowDrafts
from skipdec.runtime.scheduling.layer_drafter import LayerDrafter, TrainedDrafter

pytestmark = pytest.mark.skipif(find_library() is None, reason="the kernels were not compiled")

HEAD = 64


params = partial(greedy, max_tokens=30)


@pytest.fixture(scope="module")
def bundle(
    checkpoint: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[int], Path]:
    folder = tmp_path_factory.mktemp("trained")
    source = copy_with_tokenizer(checkpoint(STRUCTURE), folder / "checkpoint")

    def exported(behind: int) -> Path:
        path = folder / f"behind-{behind}"
        if not path.exists():
            layer = write_draft_layer(folder / f"layer-{behind}", str(source), behind)
            export(
                ExportConfig(
                    model=str(source),
                    output=path,
                    quantize="int8",
                    kernels="skipdec",
                    draft_layer=layer,
                    draft_head=HEAD,
                    verify=False,
                )
            )
        return path

    return exported


@pytest.mark.parametrize("behind", [1, 2])
@pytest.mark.parametrize("draft", ["trained,adapt=no,tokens=3", "lookup+trained,adapt=no,tokens=3"])
def test_drafts_are_those_of_the_whole_text_as_a_prompt(
    bundle: Callable[[int], Path], behind: int, draft: str
) -> None:
    """The draft layer's keys and values hold the text, however much of it drafts were wrong."""
    seen: dict[tuple[int, ...], list[int]] = {}
    propose = TrainedDrafter.propose

    def watched(self: TrainedDrafter, rows: Sequence[RowDrafts], most: int) -> list[Guesses]:
        proposed = propose(self, rows, most)
        for one, guesses in zip(rows, proposed, strict=True):
            seen[tuple(one.tokens)] = list(guesses.tokens)
        return proposed

    with (
        patch.object(TrainedDrafter, "propose", watched),
        Generator.open(bundle(behind), threads=1, max_batch_size=3) as generator,
    ):
        generator.generate(PROMPTS[:4], params(logprobs=None), draft=draft)
        found = dict(seen)
        for text, tokens in list(found.items())[:: max(1, len(found) // 12)]:
            seen.clear()
            one = params(max_tokens=4, logprobs=None)
            generator.generate([list(text[:-1])], one, draft="trained,adapt=no,tokens=3")
            first = next(iter(seen))
            if first == text:  # the prompt's own next token is the text's
                assert seen[first][: len(tokens)] == tokens[: len(seen[first])]
    assert len(found) > 20


def test_rejected_drafts_leave_nothing_in_the_draft_layer(bundle: Callable[[int], Path]) -> None:
    """A mutation: what was drafted counts as seen, right or wrong, once the text is as long."""

    def trusting(self: TrainedDrafter, drafts: RowDrafts) -> None:
        drafts.num_seen = min(len(drafts.tokens) - 1, drafts.num_seen + len(drafts.fed))
        drafts.fed = []
        unseen = drafts.tokens[drafts.num_seen : -1]
        if unseen:
            self._slots.follow(drafts.row.number, unseen, drafts.num_seen, self._plan)
            drafts.num_seen = len(drafts.tokens) - 1

    def draft_all() -> None:
        with Generator.open(bundle(1), threads=1) as generator:
            generator.generate(PROMPTS, params(max_tokens=40), draft="own+trained,adapt=no")

    proposals: list[list[int]] = []
    propose = LayerDrafter.propose

    def watched(self: LayerDrafter, rows: Sequence[RowDrafts], most: int) -> list[Guesses]:
        found = propose(self, rows, most)
        proposals.extend(list(one.tokens) for one in found)
        return found

    with patch.object(LayerDrafter, "propose", watched):
        draft_all()
        right, proposals[:] = proposals[:], []
        with patch.object(TrainedDrafter, "_show", trusting):
            draft_all()
    assert proposals != right


def test_memory_of_the_draft_layer_is_reserved_and_freed(bundle: Callable[[int], Path]) -> None:
    with Generator.open(bundle(1), threads=1) as generator:
        held = []
        for draft in ("off", "trained"):
            with generator.running_batch(draft=draft) as batch:
                batch.add(PROMPTS[0], params(max_tokens=20))
                batch.step()
                held.append(batch.stats().reserved_bytes)
                run_all(batch)
                assert batch.stats().reserved_bytes == 0
        layers = generator.model.num_layers
        assert held[1] == held[0] // layers * (layers + 1)


def test_a_request_that_fits_only_without_drafts_is_refused(
    bundle: Callable[[int], Path],
) -> None:
    with Generator.open(bundle(1), threads=1) as generator:
        generator.generate(PROMPTS[0], params(max_tokens=50))
        needed = generator.kv_memory.planned
    with Generator.open(bundle(1), threads=1, kv_memory=needed) as generator:
        generator.generate(PROMPTS[0], params(max_tokens=50))
        with pytest.raises(CapacityError, match="bytes of KV cache"):
            generator.generate(PROMPTS[0], params(max_tokens=50), draft="trained")


def test_a_bundle_without_a_draft_layer_says_how_to_get_one(
    exported: Callable[..., Path],
) -> None:
    bundle = exported("pre_norm", kernels="skipdec", quantize="int8")
    with pytest.raises(UsageError, match=r"trained needs a draft layer.*tune --draft-layer"):
        Generator.open(bundle, draft="trained")
