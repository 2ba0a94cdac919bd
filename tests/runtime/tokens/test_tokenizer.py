"""Incrementally decoded pieces join to the whole text, in whole characters."""

from __future__ import annotations

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors

from skipdec.engines.errors import BundleError, UsageError
from skipdec.runtime.tokens.tokenizer import Tokenizer


def byte_level() -> tokenizers.Tokenizer:
    """Return a tokenizer like OPT's: </s> first, all bytes, few merges, two added tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {"<pad>": 0, "</s>": 1} | {char: 2 + index for index, char in enumerate(alphabet)}
    merges = [("h", "e"), ("l", "l"), ("he", "ll"), ("Ġ", "he"), ("Ã", "©")]  # the last one is é
    vocabulary |= {"".join(merge): 258 + index for index, merge in enumerate(merges)}
    inner = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens(["<pad>", "</s>"])
    inner.add_tokens([AddedToken("[中 é]"), AddedToken("[é]")])
    inner.post_processor = processors.TemplateProcessing(
        single="</s> $A", special_tokens=[("</s>", 1)]
    )
    return inner


def leading_space() -> Tokenizer:
    """Return a tokenizer like SentencePiece's: ▁ for inner spaces, byte fallback."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += ["▁", "▁he", "llo", "▁world", "a", "é", "▁▁", "h", "e", "l", "o"]
    inner = tokenizers.Tokenizer(
        models.BPE(
            vocab={piece: index for index, piece in enumerate(pieces)},
            merges=[],
            unk_token="<unk>",
            byte_fallback=True,
        )
    )
    inner.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    inner.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    inner.add_special_tokens(["<unk>", "<s>", "</s>"])
    return Tokenizer.parse(inner.to_str().encode(), "test")


KINDS = {
    "byte_level": Tokenizer.parse(byte_level().to_str().encode(), "test"),
    "leading_space": leading_space(),
}


@pytest.fixture(params=list(KINDS))
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return KINDS[request.param]


def pieces_of(tokenizer: Tokenizer, token_ids: list[int], skip: bool = True) -> list[str]:
    decoder = tokenizer.incremental_decoder(skip)
    return [*(decoder.push(token_id) for token_id in token_ids), decoder.flush()]


@pytest.mark.parametrize("kind", list(KINDS))
@given(data=st.data())
def test_pieces_of_any_tokens_join_to_the_decoded_text(kind: str, data: st.DataObject) -> None:
    tokenizer = KINDS[kind]
    token_ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size + 2), max_size=40))
    skip = data.draw(st.booleans())
    assert "".join(pieces_of(tokenizer, token_ids, skip)) == tokenizer.decode(token_ids, skip)


@pytest.mark.parametrize("kind", list(KINDS))
@given(text=st.text(max_size=30))
def test_no_piece_of_a_text_has_half_a_character(kind: str, text: str) -> None:
    tokenizer = KINDS[kind]
    text = text.replace("\ufffd", "").replace("<", "")  # no special token's text
    pieces = pieces_of(tokenizer, tokenizer.encode(text))
    assert not any("\ufffd" in piece for piece in pieces)
    assert "".join(pieces) == text


def test_an_unknown_id_does_not_end_a_run_of_bytes() -> None:
    tokenizer = KINDS["leading_space"]
    token_ids = [3, tokenizer.vocab_size + 1, 131]
    assert "".join(pieces_of(tokenizer, token_ids, True)) == tokenizer.decode(token_ids, True)


def test_a_character_of_several_tokens_comes_with_the_last(tokenizer: Tokenizer) -> None:
    pieces = pieces_of(tokenizer, tokenizer.encode("a€a"))
    assert "".join(pieces) == "a€a"
    assert all(piece in ("", "a", "€", "€a") for piece in pieces)


@pytest.mark.parametrize(
    ("kind", "text"), [("byte_level", "a\u6771b"), ("leading_space", "\u6771a")]
)
def test_returned_and_held_characters_locate_the_next_token(kind: str, text: str) -> None:
    tokenizer = KINDS[kind]
    decoder, indices, length = tokenizer.incremental_decoder(), list[int](), 0
    for token_id in tokenizer.encode(text):
        indices.append(length + decoder.num_held)
        length += len(decoder.push(token_id))
    assert indices == {"byte_level": [0, 0, 1, 1, 1, 2], "leading_space": [0, 0, 0, 0, 1]}[kind]


def test_an_incomplete_last_character_becomes_a_replacement() -> None:
    tokenizer = KINDS["byte_level"]
    pieces = pieces_of(tokenizer, tokenizer.encode("h€")[:-1])
    assert pieces[-1] == "\ufffd"
    assert "".join(pieces) == "h\ufffd"


def test_a_space_survives_a_skipped_special_token() -> None:
    tokenizer = KINDS["leading_space"]
    hello, world = tokenizer.encode("hello"), tokenizer.encode(" world")[1:]
    token_ids = [1, *hello, 2, 1, *world]
    assert "".join(pieces_of(tokenizer, token_ids)) == tokenizer.decode(token_ids) == "hello world"


def test_encode_adds_the_post_processors_tokens() -> None:
    tokenizer = KINDS["byte_level"]
    token_ids = tokenizer.encode("hello")
    assert token_ids[0] == 1
    assert tokenizer.decode(token_ids) == "hello"
    assert tokenizer.decode(token_ids, skip_special_tokens=False) == "</s>hello"


def test_a_lone_surrogate_is_refused() -> None:
    with pytest.raises(UsageError, match=r"has the lone surrogate \\ud800, half of a"):
        KINDS["byte_level"].encode("a\ud800")


def test_token_text_is_the_text_of_one_token() -> None:
    tokenizer = KINDS["byte_level"]
    assert tokenizer.token_text(1) == "</s>"
    assert tokenizer.token_text(261) == " he"
    assert tokenizer.token_text(9999) == ""


def test_truncation_and_padding_of_the_file_are_switched_off() -> None:
    inner = byte_level()
    inner.enable_truncation(2)
    inner.enable_padding(length=64)
    tokenizer = Tokenizer.parse(inner.to_str().encode(), "test")
    assert tokenizer.encode("hello") == KINDS["byte_level"].encode("hello")


@pytest.mark.parametrize(
    "content", [b"{", b'{"model": 3}', b"\xff\xfe"], ids=["broken", "malformed", "binary"]
)
def test_an_unreadable_file_is_named(content: bytes) -> None:
    with pytest.raises(BundleError, match=r"tokenizer\.json.*export the model again"):
        Tokenizer.parse(content, "tokenizer.json")


@pytest.mark.parametrize(
    ("component", "growth"),
    [
        (normalizers.Sequence([normalizers.Replace("Q", "QQ")] * 40), "normalizer .* 1.1e[+]12"),
        (normalizers.Replace("", "x" * 100), "normalizer .* 1e[+]02"),
        (decoders.Sequence([decoders.Replace("Q", "QQ")] * 7), "decoder .* 1.3e[+]02"),
    ],
)
def test_a_tokenizer_that_inflates_short_texts_is_refused(component: object, growth: str) -> None:
    inner = tokenizers.Tokenizer(models.BPE(vocab={"a": 0}, merges=[]))
    name = "normalizer" if isinstance(component, normalizers.Normalizer) else "decoder"
    setattr(inner, name, component)
    with pytest.raises(BundleError, match=f"its {growth} times as long; allowed: 100 times"):
        Tokenizer.parse(inner.to_str().encode(), "test")
