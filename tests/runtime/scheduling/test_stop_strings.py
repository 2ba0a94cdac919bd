"""A row ends at a special token that one of its stop strings spells."""

from __future__ import annotations

from skipdec.engines.manifest import ModelSpec
from skipdec.exporter.checkpoint.tokenizer import byte_level_tokenizer
from skipdec.runtime.requests.request import Request
from skipdec.runtime.schedule import ExitSchedule
from skipdec.runtime.scheduling.running_request import Row
from skipdec.runtime.tokens.sampler import SampledToken
from skipdec.runtime.tokens.sampling import SamplingParams
from skipdec.runtime.tokens.tokenizer import Tokenizer

MODEL = ModelSpec(
    name="any",
    num_layers=2,
    hidden_size=8,
    num_heads=1,
    vocab_size=300,
    max_position_embeddings=8,
    max_seq_len=8,
)


def test_a_stop_string_that_spells_a_special_token_ends_the_row() -> None:
    document = byte_level_tokenizer(MODEL)
    assert document is not None
    tokenizer = Tokenizer.parse(document, "tokenizer")
    request = Request(0, None, (5,), SamplingParams(stop="</s>"), 8)
    row = Row(request, 0, ExitSchedule.full(2), MODEL, tokenizer, 0.0)
    deltas = [row.accept(SampledToken(token), 2) for token in (*tokenizer.encode("a"), 2)]
    assert [delta.text for delta in deltas] == ["a", ""]
    assert (row.finish_reason, deltas[-1].stop_reason) == ("stop", "</s>")
