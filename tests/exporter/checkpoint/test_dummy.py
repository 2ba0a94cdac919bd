from __future__ import annotations

import numpy as np
import pytest
from tokenizers import Tokenizer

from skipdec.exporter.architecture.architecture import family_config
from skipdec.exporter.architecture.model_config import model_spec
from skipdec.exporter.checkpoint.dummy import DummyReader
from skipdec.exporter.checkpoint.tokenizer import byte_level_tokenizer

SHAPES = {"a.weight": (300, 701), "b.weight": (300, 701), "final_layer_norm.weight": (50_001,)}


def test_a_tensor_depends_only_on_seed_and_name() -> None:
    reader = DummyReader(SHAPES, seed=1)
    weight = reader.read("a.weight")
    reader.read("b.weight")
    assert np.array_equal(weight, reader.read("a.weight"))
    assert np.array_equal(weight, DummyReader({"a.weight": (300, 701)}, seed=1).read("a.weight"))
    assert not np.array_equal(weight, reader.read("b.weight"))
    assert not np.array_equal(weight, DummyReader(SHAPES, seed=2).read("a.weight"))


def test_values_never_change_between_releases() -> None:
    weight = DummyReader({"a.weight": (1, 4)}, seed=0).read("a.weight")
    assert weight.dtype == np.float16
    assert weight.tolist() == [
        [0.035186767578125, 0.01751708984375, 0.00896453857421875, -0.0193634033203125]
    ]


@pytest.mark.parametrize(("start", "stop"), [(0, 0), (0, 1), (1, 2), (7, 300), (299, 300)])
@pytest.mark.parametrize("name", SHAPES)
def test_rows_read_alone_equal_those_of_the_whole_tensor(name: str, start: int, stop: int) -> None:
    reader = DummyReader(SHAPES, seed=3)
    assert np.array_equal(reader.read_rows(name, start, stop), reader.read(name)[start:stop])


@pytest.mark.parametrize(("name", "mean"), [("a.weight", 0), ("final_layer_norm.weight", 1)])
def test_weights_are_normal_and_norms_are_near_one(name: str, mean: float) -> None:
    values = DummyReader(SHAPES, seed=0).read(name).astype(np.float64)
    assert values.mean() == pytest.approx(mean, abs=5e-4)
    assert values.std() == pytest.approx(0.02, rel=0.02)


def test_content_ids_differ_by_seed_and_shape() -> None:
    identities = {
        DummyReader({"a.weight": shape}, seed=seed).content_id("a.weight")
        for seed in (0, 1)
        for shape in ((2, 3), (3, 2))
    }
    assert len(identities) == 4


@pytest.mark.parametrize("bos", [0, 2, None])
def test_the_byte_level_tokenizer_decodes_any_text_it_encodes(bos: int | None) -> None:
    spec = model_spec({**(family_config("opt-125m") or {}), "bos_token_id": bos}, "m")
    content = byte_level_tokenizer(spec)
    assert content is not None
    tokenizer = Tokenizer.from_str(content.decode())
    text = "Grüße, 世界 🙂\n"
    ids = tokenizer.encode(text).ids
    assert tokenizer.decode(ids) == text
    assert len(ids) == len(text.encode()) + (bos is not None)
    assert bos is None or ids[0] == bos
    assert tokenizer.token_to_id("</s>") == 2


def test_a_small_vocabulary_has_no_byte_level_tokenizer() -> None:
    spec = model_spec({**(family_config("opt-125m") or {}), "vocab_size": 259}, "m")
    assert byte_level_tokenizer(spec) is None
