"""StopChecker: decides where a completion ends, and which text may be shown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from .decoding import IncrementalDecoder
from .outputs import FinishReason
from .sampling import SamplingParams


class StopChecker:
    """Decides where one sequence ends, by its output tokens.

    After each ``push``, ``finish_reason`` is None (go on), "stop" (end of text, a stop token or a
    stop string) or "length"; ``stop_reason`` is the stop token or string, None for end of text.
    The first ``min_tokens`` tokens never stop it, and a stop string must end after them.

    Text that may be the beginning of a stop string is held back. Stop string "END", tokens
    "an E", "N", "g END it": push returns "an ", "", "ENg " and the text ends there; with
    ``include_stop_str_in_output`` it returns "an E", "N", "g END".

    A stop token's own text is omitted, unless ``include_stop_str_in_output``. Of several stop
    strings, the first to be complete counts, and the longest of those. ``special_ids`` maps
    the texts of special tokens to their ids, because decoded text may omit them: a stop string that
    spells one stops at that token.

    ``end_token_ids`` are the model's own ends of text; ``ignore_eos`` disables all of them.
    ``max_tokens`` is the request's limit or the model's, whichever is lower. Without a tokenizer
    ``decoder`` is None and text stays empty; such requests have no stop strings.
    """

    def __init__(
        self,
        params: SamplingParams,
        *,
        max_tokens: int,
        end_token_ids: Iterable[int],
        decoder: IncrementalDecoder | None,
        special_ids: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        self._params = params
        self._max_tokens = max_tokens
        self._end_token_ids = frozenset(() if params.ignore_eos else end_token_ids)
        # The stop_reason of each stop token, and of each special token that a stop string spells.
        self._stop_reasons: dict[int, int | str] = {
            special_ids[text]: text for text in params.stop if text in special_ids
        }
        self._stop_reasons |= {token_id: token_id for token_id in params.stop_token_ids}
        self._decoder = decoder
        self._num_tokens = 0
        self._num_early = 0  # characters of the first min_tokens that the decoder holds back
        self._pieces: list[str] = []  # text returned so far
        self._tail = ""  # end of the text that may begin a stop string
        self.finish_reason: FinishReason | None = None
        self.stop_reason: int | str | None = None

    @property
    def text(self) -> str:
        """All text returned so far."""
        return "".join(self._pieces)

    def push(self, token_id: int) -> str:
        """Take the next output token and return the text that may be shown; may be ""."""
        assert self.finish_reason is None, "the sequence has ended"
        self._num_tokens += 1
        may_stop = self._num_tokens > self._params.min_tokens
        if may_stop and token_id in self._end_token_ids:
            self.finish_reason = "stop"
        elif may_stop and token_id in self._stop_reasons:
            self.finish_reason, self.stop_reason = "stop", self._stop_reasons[token_id]
        elif self._num_tokens >= self._max_tokens:
            self.finish_reason = "length"
        shown = self.finish_reason != "stop" or self._params.include_stop_str_in_output
        piece = self._decoder.push(token_id) if self._decoder and shown else ""
        if self.finish_reason and self._decoder:
            piece += self._decoder.flush()
        if self._params.stop and self._decoder and not may_stop:
            self._num_early = self._decoder.num_held
        return self._return(piece, may_stop)

    def abort(self, reason: str | None = None) -> str:
        """End the sequence as cancelled and return its held-back text."""
        if self.finish_reason is not None:
            return ""
        self.finish_reason, self.stop_reason = "abort", reason
        return self._return(self._decoder.flush() if self._decoder else "", may_stop=False)

    def fail(self, reason: str) -> None:
        """End the sequence because of an error; held-back text is lost."""
        self.finish_reason, self.stop_reason = "error", reason

    def _return(self, piece: str, may_stop: bool) -> str:
        if self._params.stop:
            piece = self._up_to_stop_string(piece, may_stop)
        if piece:
            self._pieces.append(piece)
        return piece

    def _up_to_stop_string(self, piece: str, may_stop: bool) -> str:
        """Cut ``piece`` at a stop string, or hold back the end that may begin one."""
        included = self._params.include_stop_str_in_output
        text = self._tail + piece  # contains any stop string that ends in piece
        already_returned = len(self._tail) if included else 0
        num_old = len(self._tail) + self._num_early if piece else len(self._tail)
        found = self._stop_string_in(text, num_old) if may_stop else None
        if piece and may_stop:  # it includes what was held back
            self._num_early = 0
        if found is not None:
            stop, start = found
            self.finish_reason, self.stop_reason, self._tail = "stop", stop, ""
            return text[already_returned : start + len(stop) if included else start]
        if self.finish_reason is not None:
            self._tail = ""
            return text[already_returned:]
        self._tail = text[len(text) - self._beginning_length(text) :]
        return text[already_returned:] if included else text[: len(text) - len(self._tail)]

    def _stop_string_in(self, text: str, num_old: int) -> tuple[str, int] | None:
        """Return the stop string that ends first beyond ``num_old`` characters, and its start."""
        matches = []
        for stop in self._params.stop:
            start = text.find(stop, max(0, num_old - len(stop) + 1))
            if start >= 0:
                matches.append((start + len(stop), start, stop))
        if not matches:
            return None
        _, start, stop = min(matches)
        return stop, start

    def _beginning_length(self, text: str) -> int:
        """Return the length of the longest ending of ``text`` that begins a stop string."""
        longest = max(map(len, self._params.stop)) - 1
        for length in range(min(longest, len(text)), 0, -1):
            ending = text[-length:]
            if any(len(stop) > length and stop.startswith(ending) for stop in self._params.stop):
                return length
        return 0
