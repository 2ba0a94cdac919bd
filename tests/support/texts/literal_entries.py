"""Compute guesses of a bundle's draft layer literally, each chain anew in its own caches."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from skipdec.engines.backends.ort import OrtBackend
from skipdec.engines.backends.session import EngineSession
from skipdec.engines.bundle import EngineBundle
from skipdec.engines.manifest import TensorRole
from skipdec.engines.memory import Array
from skipdec.runtime.stitching.host.stitcher import HostStitcher, run_prefixes
from skipdec.runtime.stitching.loaded import load_stitcher
from skipdec.runtime.stitching.protocol import run_once


class LiteralDrafts:
    """Guesses with the draft layer of a bundle at ``path``, without slots, passes or batches."""

    def __init__(self, path: Path) -> None:
        bundle = EngineBundle.open(path)
        stitcher = load_stitcher(bundle, OrtBackend(1), 1, lambda rows: rows)
        assert isinstance(stitcher, HostStitcher)
        assert stitcher.drafts is not None
        trained = stitcher.drafts.trained
        assert trained is not None
        self._stitcher, self._trained = stitcher, trained

    def guess(self, text: Sequence[int], entries: Sequence[int], count: int) -> list[int]:
        """Return ``count`` greedy guesses after ``text``, all of which ran at full depth.

        ``entries``: positions of the text's tokens that the draft layer has read, ending with the
        last token.
        """
        assert entries[-1] == len(text) - 1
        stitcher, trained = self._stitcher, self._trained
        embedded = stitcher._embed_tokens([text], 0)  # [1, S, E]
        hidden, states = embedded.copy(), []
        for number, session in enumerate(stitcher.layers, 1):
            run_prefixes(session, hidden, *_caches(session, len(text)), np.array([len(text)]), 0)
            states += [hidden[0].copy()] * trained.spec.reads.count(number)
        before = np.concatenate(states, axis=-1)[np.array(entries) - 1]  # [n, 3 E]
        made = [_joined(trained.states, one) for one in before]
        inputs = [
            _joined(trained.entry, np.concatenate([embedded[0, position], state]))
            for position, state in zip(entries, made, strict=True)
        ]
        caches = _caches(trained.layer, len(entries) + count)
        whole = np.array(inputs)[None]  # [1, n, E]
        run_prefixes(trained.layer, whole, *caches, np.array([len(entries)]), 0)
        output, guesses = whole[0, -1].copy(), list[int]()
        while True:
            logits = np.empty((1, len(trained.spec.token_ids)), np.float32)
            run_once(
                trained.head,
                {
                    TensorRole.HIDDEN_STATES: output[None, None],
                    TensorRole.ROW_POSITIONS: np.zeros(1, np.int64),
                    TensorRole.LOGITS: logits,
                },
            )
            guesses.append(trained.spec.token_ids[int(logits.argmax())])
            if len(guesses) == count:
                return guesses
            done = len(guesses) - 1
            position = len(text) + done
            token = stitcher._embed_tokens([guesses[-1:]], position)[0, 0]
            step = _joined(trained.entry, np.concatenate([token, output]))[None, None]
            run_prefixes(trained.layer, step, *caches, np.array([1]), len(entries) + done)
            output = step[0, 0].copy()


def _joined(session: EngineSession, states: Array) -> Array:
    """Return an engine's output [E] for concatenated states."""
    width = int(session.spec.tensor(TensorRole.HIDDEN_STATES_OUT).shape[-1])
    made = np.empty((1, 1, width), states.dtype)
    given = np.ascontiguousarray(states)[None, None]
    run_once(session, {TensorRole.STATES: given, TensorRole.HIDDEN_STATES_OUT: made})
    return made[0, 0]


def _caches(session: EngineSession, positions: int) -> tuple[Array, Array]:
    """Return empty caches [1, N, T, W] of a layer."""
    past = session.spec.tensor(TensorRole.PAST_KEY)
    shape = (1, int(past.shape[1]), positions, int(past.shape[3]))
    return np.zeros(shape, past.dtype), np.zeros(shape, past.dtype)
