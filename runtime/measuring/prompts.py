"""Prompts of a benchmark: lines of a file, or random tokens."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import cast

import numpy as np

from ...engines.documents import open_regular
from ...engines.errors import UsageError, few
from ..generator import Generator
from ..requests.records import BadRecord, read_records, split_lines
from ..requests.request import make_request
from ..tokens.sampling import SamplingParams
from .config import BenchConfig

_SPECIAL_IDS = range(4)  # of OPT's tokenizers: bos, pad, eos, unk

Batch = list[list[int]]  # token ids of each row's prompt


def batches(
    generator: Generator, config: BenchConfig, *, number: int = 1
) -> dict[int, list[Batch]]:
    """Return the prompts of ``config`` by batch size, or ``number`` batches of random ones each.

    Raises as `read_prompts`, and UsageError for random prompts that leave too little room.
    """
    sizes = config.batch_sizes
    if config.prompts is not None:
        prompts = read_prompts(config.prompts, generator, config.num_tokens)
        starts = {size: range(0, len(prompts), size) for size in sizes}
        return {size: [prompts[start : start + size] for start in starts[size]] for size in sizes}
    positions, most = config.prompt_length + config.num_tokens, generator.model.max_seq_len
    if positions > most:
        raise UsageError(
            "bench",
            f"--prompt-len {config.prompt_length} and --gen-len {config.num_tokens} are "
            f"{positions:,} positions; the bundle holds {most:,}; lower one of them",
        )
    tokenizer = generator.tokenizer
    return {
        size: [
            random_prompts(
                generator.model.vocab_size,
                batch_size=size,
                prompt_length=config.prompt_length,
                seed=config.seed + index,
                special_ids=_SPECIAL_IDS if tokenizer is None else tokenizer.special_ids,
            )
            for index in range(number)
        ]
        for size in sizes
    }


def read_prompts(path: Path, generator: Generator, num_tokens: int) -> list[list[int]]:
    """Return the token ids of texts and chats in lines of JSON, as ``skipdec generate`` reads them.

    Raises UsageError, with the problems of all lines, for a file that can't be read or is empty,
    and for a line that is invalid, has more than its prompt, or has no room for ``num_tokens``.
    """
    params = SamplingParams.fixed(temperature=0, max_tokens=num_tokens)
    subject = f"--prompts {path}"
    try:
        with open_regular(path) as file:
            records = list(read_records(split_lines(file), params))
    except OSError as error:
        raise UsageError(
            subject, f"can't be read ({error.strerror or error}); give a file of JSON lines"
        ) from error
    prompts: list[list[int]] = []
    problems = [] if records else ['has no line; give lines such as {"prompt": "Hello"}']
    for record in records:
        name = f"line {record.line}"
        if isinstance(record, BadRecord):
            problems.append(f"{name} {record.error}")
        elif more := record.fields.keys() - {"id", "prompt", "prompt_token_ids", "messages"}:
            options = ", ".join(sorted(more))
            problems.append(f"{name} has {options}, which options of the command set; leave it out")
        else:
            model, tokenizer = generator.model, generator.tokenizer
            try:
                request = make_request(record.line, record.prompt, params, model, tokenizer, name)
            except UsageError as error:
                problems += error.problems
            else:
                prompts.append(list(request.prompt_token_ids))
    if problems:
        raise UsageError(subject, *few(problems))
    return prompts


def random_prompts(
    vocab_size: int,
    *,
    batch_size: int,
    prompt_length: int,
    seed: int,
    special_ids: Collection[int] = _SPECIAL_IDS,
) -> list[list[int]]:
    """Return token ids [batch_size][prompt_length], none of them in ``special_ids``.

    If the vocabulary has only special tokens, any may occur.
    """
    ids = np.setdiff1d(np.arange(vocab_size), list(special_ids))
    if not ids.size:
        ids = np.arange(vocab_size)
    chosen = np.random.default_rng(seed).integers(0, ids.size, (batch_size, prompt_length))
    return cast("list[list[int]]", ids[chosen].tolist())
