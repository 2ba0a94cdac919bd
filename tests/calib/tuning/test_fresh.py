"""Create a fresh model and its tokenizer from a short text and the data."""

from __future__ import annotations

import pytest
from transformers import LlamaConfig, LlamaForCausalLM

from skipdec.calib.data.data import Example
from skipdec.calib.data.tokenised import ExampleEncoder, tokenise
from skipdec.calib.tuning.start import fresh_document, read_fresh_model, train_tokenizer
from skipdec.engines.errors import UsageError
from skipdec.exporter.architecture.model_config import model_spec
from skipdec.runtime.tokens.tokenizer import Tokenizer

EXAMPLES = [Example("name[Café]", "Café is a pub.", "line 1")]


def test_sizes_are_read_from_a_text() -> None:
    fresh = read_fresh_model("layers=12, width=256,heads=4,positions=128")
    spec = model_spec(fresh_document(fresh, 1500), "fresh")
    sizes = (spec.num_layers, spec.hidden_size, spec.ffn_dim, spec.vocab_size, spec.max_seq_len)
    assert sizes == (12, 256, 1024, 1500, 128)
    assert (spec.bos_token_id, spec.pad_token_id, spec.eos_token_id) == (0, 1, 2)


def test_sizes_of_llama_are_read_from_a_text() -> None:
    text = "family=llama,layers=3,width=56,heads=4,kv_heads=2,head_dim=16,positions=64"
    made = fresh_document(read_fresh_model(text), 300)
    sizes = {name: made[name] for name in ("num_key_value_heads", "head_dim", "intermediate_size")}
    assert sizes == {"num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 160}
    model = LlamaForCausalLM(LlamaConfig(**made))
    assert model.model.layers[0].self_attn.o_proj.weight.shape == (56, 64)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    smallest = fresh_document(read_fresh_model("family=qwen3,layers=1,width=256,heads=4"), 300)
    assert (smallest["num_key_value_heads"], smallest["head_dim"]) == (4, 64)
    assert smallest["intermediate_size"] == 704


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("layers=12,width=256", "heads is missing"),
        ("layers=0,width=256,heads=4", "layers is '0'; allowed: 1 or more"),
        ("layers=2,width=20,heads=4", "width is a multiple of 8"),
        (
            "layers=2,width=32,heads=4,depth=3",
            "depth is unknown; did you mean 'width'",
        ),
        ("layers=2,layers=3", "'layers=3' is not NAME=NUMBER, or given twice"),
        (
            "family=lama,layers=2,width=32,heads=4",
            "family is 'lama'; did you mean 'llama'. allowed: opt, llama, mistral, qwen2,",
        ),
        (
            "layers=2,width=32,heads=4,kv_heads=2",
            "kv_heads is not a size of opt; allowed: ffn, positions, dropout",
        ),
        ("family=llama,layers=2,width=32,heads=4,dropout=0.1", "dropout is not a size of llama"),
        (
            "family=llama,layers=2,width=32,heads=4,kv_heads=3",
            "kv_heads is 3; allowed: a divisor of heads, 4",
        ),
        (
            "family=llama,layers=2,width=36,heads=4,head_dim=12",
            "head_dim is 12; allowed: a multiple of 8",
        ),
    ],
)
def test_invalid_sizes_are_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        read_fresh_model(text)
    assert caught.value.subject == f"from_scratch {text!r}"


def test_the_tokenizer_itself_ends_a_bare_prompt_with_the_separator() -> None:
    files = train_tokenizer(EXAMPLES, vocab_size=300)
    tokenizer = Tokenizer.parse(files["tokenizer.json"], "test")
    data = tokenise(EXAMPLES, ExampleEncoder(tokenizer, (2,), 1000, 64))
    prompt, completion = data.examples[0].prompt_token_ids, data.examples[0].completion_token_ids
    assert (prompt[0], prompt[-1], completion[-1]) == (0, 4, 2)
    assert tokenizer.decode(prompt, skip_special_tokens=False) == "<s>name[Café]<sep>"
    assert tokenizer.decode(completion) == "Café is a pub."
    assert train_tokenizer(EXAMPLES, vocab_size=300) == files


def test_special_tokens_may_not_be_in_the_data() -> None:
    with pytest.raises(UsageError, match="contains <sep>"):
        train_tokenizer([Example("a<sep>", "b", "")], vocab_size=300)
