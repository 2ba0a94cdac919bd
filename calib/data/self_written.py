"""Texts that a model writes itself, at full depth, as data for tuning.

A model with a chat template writes user turns after the text that its template puts before them,
and then answers them. Any other model writes texts after its beginning-of-text token. Each text has
random numbers of its own, so that an interrupted run that continues writes the same texts.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

from ...engines.bundle import replace_file
from ...engines.bundle.place import WriterLock, open_own
from ...engines.documents import canonical_text, naming_file
from ...engines.errors import UsageError
from ...engines.host.events import Events
from ...engines.kernels.library import find_library
from ...exporter.config import ExportConfig
from ...exporter.pipeline.exporting import export
from ...exporter.verification.answers import repeats_itself
from ...runtime.generator import Generator
from ...runtime.tokens.outputs import CompletionOutput, StreamDelta
from ...runtime.tokens.sampling import SamplingParams
from .chats import read_conversation
from .data import DataConfig, Example, load_examples
from .own_texts import OwnTexts, Text
from .tokenised import NO_TEMPLATE, encode_example

_BATCHES = {"cuda": 64, "cpu": 32}  # texts per batch
_WAVES = {"cuda": 1024, "cpu": 256}  # texts that are written before any of them is kept
_MOST_TRIED = 8  # texts written per text that is kept
# With plain sampling, SmolLM2 begins two thirds of all user turns with "I" or "Can".
_FIRST = {"temperature": 2.0, "min_p": 0.05, "max_tokens": 1}
_FREE = {"temperature": 1.0, "top_p": 0.95, "top_k": 50}  # user turns, and texts without a template
_ANSWERS = {"temperature": 0.7, "top_p": 0.95, "top_k": 50}
_MARK = "skipdecusercontent"
_FIRST_WORD = re.compile(r"\s*\S{1,24}")
_LOOP_TOKENS = 16  # that repeat a passage at the end
_GRAM = 4  # tokens


def own_examples(
    texts: OwnTexts, work: Path, *, may_use_gpu: bool, events: Events
) -> list[Example]:
    """Return the texts that a model writes itself, after writing those that are missing.

    ``work`` is the directory of the engines that write them. Raises UsageError for a model that has
    no chat template but was tuned with a prompt template, and for a maximum length that leaves no
    room for a text, and the errors of `write_own_texts`.
    """
    template = texts.checkpoint.prompt_template
    if texts.checkpoint.chat is None and template is not None:
        raise UsageError(
            "data self",
            f"has no prompts, and the model was tuned with the prompt template {template!r}; give "
            "a file",
        )
    kept, size = texts.read()
    if len(kept) < texts.count:
        _require_room(texts)
        write_own_texts(texts, work, on_gpu=may_use_gpu and _has_gpu(events), events=events)
    elif size < texts.path.stat().st_size:  # a run was killed while it wrote a line
        with WriterLock(texts.path):
            os.truncate(texts.path, texts.read()[1])
    events.stage("reading texts", 1)
    return load_examples(DataConfig(path=texts.path))[: texts.count]


def _require_room(texts: OwnTexts) -> None:
    """Raise UsageError if no text fits into ``max_length`` or the template refuses chats."""
    with closing(texts.checkpoint.open_tokenizer()) as tokenizer:
        if tokenizer.chat is None:
            least = 2 + max(1, len(tokenizer.encode("")))
        else:
            chat = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
            ends = texts.checkpoint.model.end_token_ids
            answered = tokenizer.chat.encode_answered(chat, ends)
            least = 2 * len(answered.prompt.token_ids) + 2  # half is reserved for the user's turn
    if texts.max_length < least:
        raise UsageError(
            "max_length",
            f"is {texts.max_length}; allowed: {least} or more, for texts with any content",
        )


def _has_gpu(events: Events) -> bool:
    """Return True if ONNX Runtime's engines can run on the GPU that torch finds; warn if not."""
    import torch

    from ...engines.backends.ort import execution_providers

    if not torch.cuda.is_available():
        return False
    has_provider = "CUDAExecutionProvider" in execution_providers()
    if not has_provider:
        events.warn(
            "the texts are written on the CPU, as ONNX Runtime has no CUDA provider here; replace "
            "it: pip uninstall onnxruntime, then pip install 'onnxruntime-gpu[cuda,cudnn]'"
        )
    return has_provider


def write_own_texts(texts: OwnTexts, work: Path, *, on_gpu: bool, events: Events) -> None:
    """Write the missing texts, using engines that are exported to the directory ``work``.

    Lines are in the order of their texts' indices, each with its seed. Raises UsageError if too few
    of the texts can be used, and the errors of `OwnTexts.read`.
    """
    device = "cuda" if on_gpu else "cpu"
    batch = _BATCHES[device]
    texts.path.parent.mkdir(parents=True, exist_ok=True)
    with WriterLock(texts.path), naming_file(texts.path):
        kept, size = texts.read()
        replace_file(texts.facts_path, canonical_text(texts.facts).encode())
        events.stage("exporting", 1)
        with (
            _generator(texts, work, device) as generator,
            os.fdopen(open_own(texts.path), "r+b") as file,
        ):
            file.truncate(size)
            file.seek(size)
            events.stage("writing texts", texts.count)
            events.advance(steps=len(kept))
            writer = _Writer(generator, texts, _speed(events))
            wave = min(_WAVES[device], -(-texts.count // batch) * batch)
            written = 0
            for text in writer.new_texts(kept, wave):
                file.write((json.dumps(text, ensure_ascii=False) + "\n").encode())
                file.flush()
                events.advance()
                written = text["index"] + 1
            events.note(f"kept {texts.count:,} of {written:,} texts that the model wrote")


@contextmanager
def _generator(texts: OwnTexts, work: Path, device: str) -> Iterator[Generator]:
    """Open a generator of the model at full depth."""
    directory = work / "writer"
    directory.mkdir(parents=True, exist_ok=True)
    bundle, on_gpu = directory / "model.skipdec", device == "cuda"
    has_kernels = not on_gpu and find_library() is not None
    config = ExportConfig(
        model=str(texts.checkpoint.directory),
        output=bundle,
        dtype="float16" if on_gpu else "float32",
        # A batch of 32 texts of SmolLM2 is 2.5 times as fast as in float16.
        quantize="int8-block" if has_kernels else "none",
        kernels="onnxruntime" if on_gpu else "auto",
        schedule="full",
        max_seq_len=texts.max_length,
        verify=False,
        force=True,
    )
    try:
        export(config)
        with Generator.open(bundle, device=device, max_batch_size=_BATCHES[device]) as generator:
            yield generator
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        with suppress(OSError):  # it may hold the saves of an interrupted tuning
            work.rmdir()


def _speed(events: Events) -> Callable[[Sequence[StreamDelta]], None]:
    """Return a function that counts the deltas of each step and shows tokens per second."""
    begin, tokens, steps = perf_counter(), 0, 0

    def count(deltas: Sequence[StreamDelta]) -> None:
        nonlocal tokens, steps
        tokens, steps = tokens + len(deltas), steps + 1
        if steps % 64 == 0:
            events.status(f"{tokens / (perf_counter() - begin):,.0f} tokens per second")

    return count


class _Writer:
    """Writes texts by their indices; ``on_progress`` receives the deltas of each step."""

    def __init__(
        self,
        generator: Generator,
        texts: OwnTexts,
        on_progress: Callable[[Sequence[StreamDelta]], None],
    ) -> None:
        assert generator.tokenizer is not None, "a model without one can't be tuned"
        self._generator, self._texts, self._on_progress = generator, texts, on_progress
        self._tokenizer, self._chat = generator.tokenizer, generator.tokenizer.chat
        self._ends = generator.model.end_token_ids
        begin = generator.model.bos_token_id
        self._start = self._tokenizer.encode("") or [self._ends[0] if begin is None else begin]
        self._stop: dict[str, Any] = {}  # what ends a user's turn besides the end of text
        if self._chat is not None:
            rendered = self._chat.encode([{"role": "user", "content": _MARK}]).text
            before, _, after = rendered.partition(_MARK)
            self._start = self._encode(before.rstrip(" ")) or self._start
            after = after.strip().partition("\n")[0]
            ids = self._encode(after)
            is_token = bool(ids) and ids[0] in self._tokenizer.special_ids
            self._stop = {"stop_token_ids": ids[:1]} if is_token else {"stop": after or None}

    def new_texts(self, kept: Sequence[Text], wave: int) -> Iterator[Text]:
        """Yield usable texts after the ``kept`` ones until the requested number is reached."""
        seen = {_key(text) for text in kept}
        begin = kept[-1]["index"] + 1 if kept else 0
        index = begin // wave * wave  # same batches as without interruption
        before = {_key(text) for text in kept if text["index"] < index}
        wanted, count = self._texts.count, len(kept)
        while count < wanted:
            if index >= wave + _MOST_TRIED * wanted:
                raise UsageError(
                    "data self",
                    f"{index:,} texts were written, and {count:,} of them can be used, fewer than "
                    f"{wanted:,}: the others are empty or cut, or repeat themselves or other "
                    "texts; ask for fewer, raise the maximum length, or give a file",
                )
            for text in self._wave(range(index, index + wave), before):
                if text["index"] >= begin and count < wanted and _key(text) not in seen:
                    seen.add(_key(text))
                    count += 1
                    yield text
            index += wave
            before = seen

    def _wave(self, indices: range, seen: set[str]) -> list[Text]:
        """Return the usable texts of ``indices``; user turns in ``seen`` are not answered.

        ``seen`` are the keys of earlier waves, whether or not the run was interrupted.
        """
        texts = [{"index": index, "seed": self._seed(index)} for index in indices]
        written = self._passages(texts) if self._chat is None else self._chats(texts, seen)
        return [
            text
            for text, output in written
            if self._is_usable(output) and self._is_whole(text, output)
        ]

    def _seed(self, index: int) -> int:
        return random.Random(f"{self._texts.seed}:{index}").getrandbits(63)

    def _passages(self, texts: Sequence[Text]) -> Iterator[tuple[Text, CompletionOutput]]:
        """Yield texts, whose first word becomes the prompt, and the model's output."""
        for text, output in self._free(texts, {}):
            first = _FIRST_WORD.match(output.text)
            if first is not None and (rest := output.text[first.end() :]).strip():
                yield text | {"prompt": first.group(), "completion": rest}, output

    def _chats(
        self, texts: Sequence[Text], seen: set[str]
    ) -> Iterator[tuple[Text, CompletionOutput]]:
        """Yield chats of a user's turn and an answer, and the model's output for the answer."""
        assert self._chat is not None
        most = max(1, self._texts.max_length // 2 - len(self._start) - 1)
        chats, prompts = list[Text](), list[Sequence[int]]()
        for text, turn in self._free(texts, {**self._stop, "max_tokens": most}):
            content = turn.text.strip()
            if turn.finish_reason != "stop" or content in seen or not self._is_usable(turn):
                continue
            messages = [{"role": "user", "content": content}]
            with suppress(UsageError):  # the template may refuse a turn
                prompt = self._chat.encode(messages).token_ids
                if len(prompt) < self._texts.max_length:
                    chats.append(text | {"messages": messages})
                    prompts.append(prompt)
        seeds = [text["seed"] + 2 for text in chats]
        for text, output in zip(chats, self._complete(prompts, seeds, _ANSWERS), strict=True):
            answer = {"role": "assistant", "content": output.text}
            yield text | {"messages": [*text["messages"], answer]}, output

    def _free(
        self, texts: Sequence[Text], limits: Mapping[str, Any]
    ) -> Iterator[tuple[Text, CompletionOutput]]:
        """Yield the model's output after its start tokens, with a more evenly drawn first token.

        Texts that would begin with a special token are dropped.
        """
        seeds = [text["seed"] for text in texts]
        drawn = self._complete([self._start] * len(texts), seeds, _FIRST)
        begun = [
            (text, output.token_ids[0])
            for text, output in zip(texts, drawn, strict=True)
            if output.finish_reason == "length"
            and output.token_ids[0] not in self._tokenizer.special_ids
        ]
        prompts = [[*self._start, first] for _, first in begun]
        seeds = [text["seed"] + 1 for text, _ in begun]
        outputs = self._complete(prompts, seeds, {**_FREE, **limits})
        for (text, first), output in zip(begun, outputs, strict=True):
            ids = (first, *output.token_ids)
            written = self._tokenizer.decode(ids).partition(limits.get("stop") or "\0")[0]
            yield text, replace(output, token_ids=ids, text=written)

    def _complete(
        self,
        prompts: Sequence[Sequence[int]],
        seeds: Sequence[int],
        sampling: Mapping[str, Any],
    ) -> list[CompletionOutput]:
        """Continue ``prompts``, each with its seed, by default to the maximum length."""
        params = [
            SamplingParams.fixed(
                **{"max_tokens": self._texts.max_length - len(prompt), **sampling},
                seed=seed,
            )
            for seed, prompt in zip(seeds, prompts, strict=True)
        ]
        ids = [list(prompt) for prompt in prompts]
        results = self._generator.generate(ids, params, on_progress=self._on_progress)
        return [result.outputs[0] for result in results]

    def _encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False)

    def _is_usable(self, output: CompletionOutput) -> bool:
        """Return False for texts that failed, are empty, loop, or contain special tokens."""
        ids = output.token_ids[: -1 if output.finish_reason == "stop" else None]
        return (
            output.finish_reason in ("stop", "length")
            and bool(output.text.strip())
            and self._tokenizer.special_ids.isdisjoint(ids)
            and not is_looping(ids)
        )

    def _is_whole(self, text: Text, output: CompletionOutput) -> bool:
        """Return False for a text that was cut but that tuning would take for a complete one.

        Tuning cuts a text that exceeds the maximum length and adds no end to it, so such a text
        counts as whole.
        """
        if output.finish_reason == "stop":
            return True
        is_chat = "messages" in text
        prompt, rest = read_conversation(text) if is_chat else (text["prompt"], text["completion"])
        example = Example(prompt, rest, source="")
        ids = encode_example(example, self._tokenizer, NO_TEMPLATE, self._ends)
        return sum(map(len, ids)) > self._texts.max_length


def _key(text: Text) -> str:
    """Return the key by which texts must be unique: a chat's first message, or the whole text."""
    if "messages" in text:
        return str(text["messages"][0]["content"])
    return f"{text['prompt']}{text['completion']}"


def is_looping(ids: Sequence[int]) -> bool:
    """Return True if a text ends in a repeated passage or repeats itself throughout.

    >>> is_looping([5, 6, 7, 8] * 4 + [5, 6]), is_looping(range(40))
    (True, False)
    """
    if repeats_itself(ids, _LOOP_TOKENS):
        return True
    grams = {tuple(ids[index : index + _GRAM]) for index in range(len(ids) - _GRAM + 1)}
    return len(ids) >= 2 * _LOOP_TOKENS and 2 * len(grams) < len(ids) - _GRAM + 1
