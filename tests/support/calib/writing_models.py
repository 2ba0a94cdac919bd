"""Make a tiny model that writes chats and texts, some of which repeat themselves."""

from __future__ import annotations

import random
from pathlib import Path

import torch
from chat_templates import byte_tokenizer
from transformers import LlamaConfig, LlamaForCausalLM

POSITIONS = 64
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role[0] }} {{ m.content }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>a {% endif %}"
)
_LETTERS = "ABCDEFGH"
_STEPS = 120


def save_writing_model(directory: Path) -> Path:
    """Save a LLaMA that writes chats by TEMPLATE, and texts after "<s>"."""
    tokenizer = byte_tokenizer()
    ids = {token: tokenizer.token_to_id(token) for token in ("<s>", "<pad>", "</s>", "<|im_end|>")}
    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=48,
        num_hidden_layers=2,
        num_attention_heads=3,
        num_key_value_heads=1,
        head_dim=16,
        intermediate_size=96,
        max_position_embeddings=POSITIONS,
        bos_token_id=ids["<s>"],
        eos_token_id=[ids["</s>"], ids["<|im_end|>"]],
        pad_token_id=ids["<pad>"],
    )
    model = LlamaForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    rng = random.Random(0)
    for _ in range(_STEPS):
        chats = [tokenizer.encode(_chat(rng), add_special_tokens=False).ids for _ in range(12)]
        rows = chats + [tokenizer.encode(_text(rng)).ids for _ in range(4)]
        width = max(map(len, rows))
        tokens = torch.tensor([row + [-100] * (width - len(row)) for row in rows])
        model(input_ids=tokens.clamp(min=0), labels=tokens).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained(directory)
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "chat_template.jinja").write_text(TEMPLATE)
    return directory


def _chat(rng: random.Random) -> str:
    first, other = rng.choices(_LETTERS, k=2)
    answer = f"{other} {first}." if rng.random() < 0.6 else "la " * 7
    return f"<|im_start|>u {first}{other}?<|im_end|><|im_start|>a {answer}<|im_end|>"


def _text(rng: random.Random) -> str:
    return " ".join(rng.choices(_LETTERS, k=rng.randint(2, 5))) + ".</s>"
