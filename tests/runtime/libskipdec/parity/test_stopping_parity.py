"""The C++ StopChecker ends each sequence where Python's does, with the same pieces."""

from __future__ import annotations

import json
import random
import subprocess
from pathlib import Path
from typing import Any

import pytest
from libskipdec.token_files import tokenizer_file
from libskipdec.token_texts import random_text
from programs import built_program

from skipdec.runtime.tokens.sampling import SamplingParams
from skipdec.runtime.tokens.stopping import StopChecker
from skipdec.runtime.tokens.tokenizer import Tokenizer

_WORDS = ["a", "ab", "aba", "abab", "b", " ", "é", "ét", "東", "東京", "\ufffd", "\n\n", "END"]


def random_case(source: random.Random, tokenizer: Tokenizer) -> dict[str, Any]:
    """Return a case whose text and stop strings consist of the same few words."""
    text = "".join(source.choices(_WORDS, k=source.randint(1, 12)))
    token_ids = tokenizer.encode(text + random_text(source, ("</s>",)) * source.randint(0, 1))[1:]
    max_tokens = source.choice((1, 2, 5, 100))
    stop = ["".join(source.choices(_WORDS, k=source.choice((1, 1, 2, 3)))) for _ in range(4)]
    stop = [text if source.random() < 0.8 else "</s>" for text in stop]  # a special token
    has_tokenizer = source.random() < 0.95
    return {
        "tokens": [*token_ids, *source.choices(range(tokenizer.vocab_size + 3), k=3)],
        "abort": source.choice((None, None, "gone")),
        "fail": source.choice((None, None, None, "broken")),
        "stop": stop[: source.choice((0, 1, 1, 2, 4)) if has_tokenizer else 0],
        "stop_token_ids": source.sample(token_ids, k=1) if source.random() < 0.2 else [],
        "end_token_ids": source.choice(([], [2], [2, *source.sample(token_ids, k=1)])),
        "ignore_eos": source.random() < 0.2,
        "include_stop_str_in_output": source.random() < 0.4,
        "skip_special_tokens": source.random() < 0.7,
        "min_tokens": source.choice((0, 0, 0, 1, min(4, max_tokens))),
        "max_tokens": max_tokens,
        "tokenizer": has_tokenizer,
    }


def expected(case: dict[str, Any], tokenizer: Tokenizer) -> dict[str, Any]:
    rest = ("tokens", "abort", "fail", "end_token_ids", "tokenizer")
    params = SamplingParams(**{name: case[name] for name in case if name not in rest})
    decoder = tokenizer.incremental_decoder(params.skip_special_tokens)
    checker = StopChecker(
        params,
        max_tokens=case["max_tokens"],
        end_token_ids=case["end_token_ids"],
        decoder=decoder if case["tokenizer"] else None,
        special_ids=tokenizer.ids_of_special_tokens if case["tokenizer"] else {},
    )
    pieces = []
    for token_id in case["tokens"]:
        pieces.append(checker.push(token_id))
        if checker.finish_reason:
            break
    if case["abort"] is not None:
        pieces.append(checker.abort(case["abort"]))
    if case["fail"] is not None:
        checker.fail(case["fail"])
    return {
        "pieces": pieces,
        "text": checker.text,
        "finish_reason": checker.finish_reason,
        "stop_reason": checker.stop_reason,
    }


@pytest.mark.parametrize("name", ["opt_like", "llama2"])
def test_random_sequences_end_as_in_python(name: str, tmp_path: Path) -> None:
    path = tokenizer_file(name, tmp_path)
    tokenizer = Tokenizer.parse(path.read_bytes(), str(path))
    source = random.Random(0)
    cases = [random_case(source, tokenizer) for _ in range(4000)]
    request = "".join(json.dumps(case) + "\n" for case in cases)
    result = subprocess.run(
        [built_program("stop"), path], input=request, capture_output=True, text=True, check=True
    )
    answers = [json.loads(line) for line in result.stdout.split("\n")[:-1]]
    rights = [expected(case, tokenizer) for case in cases]
    wrong = [row for row in zip(cases, answers, rights, strict=True) if row[1] != row[2]]
    assert not wrong[:2]
    ends = {str(right["finish_reason"]) for right in rights}
    assert ends == {"stop", "length", "abort", "error", "None"}  # None: the sequence goes on
    assert sum(isinstance(right.get("stop_reason"), str) for right in rights) > 500
    assert any(right.get("stop_reason") == "</s>" for right in rights)
