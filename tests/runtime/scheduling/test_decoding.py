"""Guesses change no text, because the rows' own samplers check them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest
from compared_texts import greedy, run_requests, shown
from text_bundles import STRUCTURE, export_with_kernels

from skipdec import Generator
from skipdec.engines.kernels.library import find_library
from skipdec.runtime.scheduling.decoding import Decoding, fed
from skipdec.runtime.scheduling.drafters import room_of
from skipdec.runtime.scheduling.running_request import Row
from skipdec.runtime.stitching.protocol import StepRow
from skipdec.runtime.tokens.outputs import RequestOutput

pytestmark = pytest.mark.skipif(find_library() is None, reason="the kernels were not compiled")

Known = dict[int, Sequence[int]]  # by row


class KnownGuesses(Decoding):
    """Guesses known texts; every fifth guess is wrong, every fourth pass has none."""

    def __init__(self, known: Known, width: int) -> None:
        self._known = known
        self._width = width
        self._passes = self._guessed = 0

    def feed(self, rows: Sequence[Row]) -> list[StepRow]:
        return [fed(row, self._guesses(row)) for row in rows]

    def _guesses(self, row: Row) -> list[int]:
        self._passes += 1
        guesses = [*self._known[row.number][len(row.token_ids) :], 5, 5, 5, 5, 5, 5, 5, 5]
        for index in range(self._width - 1):
            self._guessed += 1
            guesses[index] += self._guessed % 5 == 0
        most = min(self._width - 1, room_of(row))
        return guesses[:most] if self._passes % 4 else []


@pytest.fixture(scope="module")
def generator(
    checkpoint: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Generator]:
    bundle = export_with_kernels(checkpoint(STRUCTURE), tmp_path_factory.mktemp("decoding"))
    with Generator.open(bundle, threads=1, max_batch_size=4) as generator:
        yield generator


def texts_by_row(outputs: Sequence[RequestOutput]) -> Known:
    return dict(enumerate(one.token_ids for output in outputs for one in output.outputs))


params = partial(greedy, max_tokens=21)
GREEDY = params()


@pytest.mark.parametrize("min_tokens", [0, 12])
def test_a_text_ends_within_a_pass_as_without_guesses(
    generator: Generator, min_tokens: int
) -> None:
    """End texts by stop strings and stop tokens; tokens after them are guessed, too."""
    unstopped, _ = run_requests(generator, [GREEDY] * 4)
    texts = [output.outputs[0] for output in unstopped]
    requests = [
        params(min_tokens=min_tokens, stop=[texts[0].text[8:11]]),
        params(min_tokens=min_tokens, stop_token_ids=[texts[1].token_ids[9]]),
        params(min_tokens=min_tokens, stop=[texts[2].text[5:7], "\x00"]),
        GREEDY,
    ]
    expected, _ = run_requests(generator, requests)
    found, _ = run_requests(generator, requests, KnownGuesses(texts_by_row(unstopped), 8))
    assert shown(found) == shown(expected)


def test_every_later_token_of_a_drafted_text_has_a_time(generator: Generator) -> None:
    ordinary, _ = run_requests(generator, [GREEDY])
    found, _ = run_requests(generator, [GREEDY], KnownGuesses(texts_by_row(ordinary), 8))
    assert len(found[0].outputs[0].timings.inter_token_seconds) == GREEDY.max_tokens - 1
