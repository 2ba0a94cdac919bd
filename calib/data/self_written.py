"""Texts that a model writes itself, at full depth: the data of a tuning without any other.

A model with a chat template writes user turns behind what its template puts before them, and then
answers them. Another model writes texts behind its beginning of text. Each text has random numbers
of its own, so a run that continues after an interruption writes the same texts.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from time import perf_counter
from typing import Any, ClassVar

from ...engines.bundle import replace_file
from ...engines.bundle.place import WriterLock, open_own
from ...engines.documents import naming_file, read_json
from ...engines.errors import UsageError
from ...engines.host.events import Events
from ...runtime.generator import Generator
from ...runtime.tokens.outputs import CompletionOutput, StreamDelta
from ...runtime.tokens.sampling import SamplingParams
from ...runtime.tokens.tokenizer import Tokenizer
from .chats import Conversation
from .data import Example
from .tokenised import NO_TEMPLATE, encode_example

OWN_LENGTH = 512
"""Tokens of a text, prompt included, if no maximum length is given."""

_BATCHES = {"cuda": 64, "cpu": 16}  # texts at once
_WAVES = {"cuda": 1024, "cpu": 64}  # texts that are written together, before any is kept
_MOST_TRIED = 8  # texts per text that is kept
_FREE = {"temperature": 1.0, "top_p": 0.95, "top_k": 50}  # user turns, and texts of base models
_ANSWERS = {"temperature": 0.7, "top_p": 0.95, "top_k": 50}
_MARK = "skipdecusercontent"
_FIRST_WORD = re.compile(r"\s*\S{1,24}")
_LOOP_TOKENS = 16  # of a passage that repeats itself up to the end
_LOOP_TIMES = 3
_GRAM = 4  # tokens


@dataclass(frozen=True)
class OwnTexts:
    """The first ``count`` usable texts of ``model``, kept in the JSON lines ``path``.

    ``model_sha256`` is the digest of its weights. A file beside ``path`` says which model and
    options its texts have, so that they are used for no others.
    """

    path: Path
    model: str
    model_sha256: str
    count: int
    max_length: int
    seed: int

    FORMAT: ClassVar[int] = 1  # another one for other rules of sampling and filtering

    @property
    def facts(self) -> dict[str, Any]:
        """What texts depend on, apart from their number."""
        return {
            "format": self.FORMAT,
            "model_sha256": self.model_sha256,
            "max_length": self.max_length,
            "seed": self.seed,
        }

    @property
    def facts_path(self) -> Path:
        """The file that says which model and options the texts have."""
        return self.path.with_suffix(".json")

    def read(self) -> tuple[list[dict[str, Any]], int]:
        """Return the texts that are kept, and the bytes that they take; a broken end is left out.

        Raises UsageError for texts of another model or other options, and for damaged ones.
        """
        if not self.path.exists():
            return [], 0
        remedy = "move both files away, or choose another output"
        facts = read_json(self.facts_path, UsageError, remedy=remedy)
        if facts != self.facts:
            found = facts if isinstance(facts, dict) else {}
            raise UsageError(
                str(self.path),
                *(
                    f"holds texts with {name} {found.get(name)!r:.40}; this run needs {value!r:.40}"
                    for name, value in self.facts.items()
                    if found.get(name) != value
                ),
                remedy,
            )
        lines = self.path.read_bytes().splitlines(keepends=True)
        texts: list[dict[str, Any]] = []
        size = 0
        for number, line in enumerate(lines, start=1):
            try:
                texts.append({"index": None} | json.loads(line))
                if not isinstance(texts[-1]["index"], int) or not line.endswith(b"\n"):
                    raise ValueError("it has no index, or no end")
            except (TypeError, ValueError) as error:
                if number < len(lines):
                    raise UsageError(
                        str(self.path), f"is damaged at line {number} ({error}); {remedy}"
                    ) from error
                return texts[: number - 1], size
            size += len(line)
        return texts, size


def write_own_texts(texts: OwnTexts, work: Path, *, on_gpu: bool, events: Events) -> None:
    """Write the texts that are missing, by engines that are exported to the directory ``work``.

    Lines are in order of their texts' indices, each with the seed of its random numbers. Raises
    UsageError if too few of the texts that the model writes can be used, and as `OwnTexts.read`.
    """
    texts.path.parent.mkdir(parents=True, exist_ok=True)
    with WriterLock(texts.path), naming_file(texts.path):
        kept, size = texts.read()
        replace_file(texts.facts_path, (json.dumps(texts.facts, indent=2) + "\n").encode())
        events.stage("engines", 1)
        with (
            _generator(texts, work, "cuda" if on_gpu else "cpu") as (generator, batch, wave),
            os.fdopen(open_own(texts.path), "r+b") as file,
        ):
            events.advance()
            file.truncate(size)
            file.seek(size)
            events.stage("writing texts", texts.count)
            events.advance(steps=len(kept))
            writer = _Writer(generator, texts, _Speed(events))
            wave = min(wave, -(-texts.count // batch) * batch)
            for text in writer.new_texts(kept, wave):
                file.write((json.dumps(text, ensure_ascii=False) + "\n").encode())
                file.flush()
                events.advance()


@contextmanager
def _generator(texts: OwnTexts, work: Path, device: str) -> Iterator[tuple[Generator, int, int]]:
    """Open the model at full depth; yield it, the texts of a batch, and those of a wave."""
    from ...engines.kernels.library import find_library
    from ...exporter.config import ExportConfig
    from ...exporter.pipeline.exporting import export

    on_gpu = device == "cuda"
    directory = work / "writer"
    directory.mkdir(parents=True, exist_ok=True)
    try:
        bundle = directory / "model.skipdec"
        export(
            ExportConfig(
                model=texts.model,
                output=bundle,
                # skipdec's kernels have the same bits in every batch, in 16 bits.
                dtype="float16" if on_gpu or find_library() is not None else "float32",
                kernels="onnxruntime" if on_gpu else "auto",
                schedule="full",
                max_seq_len=texts.max_length,
                verify=False,
                force=True,
            )
        )
        batch = _BATCHES[device]
        with Generator.open(
            bundle, device=device, max_batch_size=batch, raw_prompts=True
        ) as generator:
            yield generator, batch, _WAVES[device]
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        with suppress(OSError):
            work.rmdir()


class _Speed:
    """Shows how many tokens a second are written."""

    def __init__(self, events: Events) -> None:
        self._events = events
        self._begin, self._tokens, self._steps = perf_counter(), 0, 0

    def __call__(self, deltas: Sequence[StreamDelta]) -> None:
        self._tokens += len(deltas)
        self._steps += 1
        if self._steps % 64 == 0:
            rate = self._tokens / (perf_counter() - self._begin)
            self._events.status(f"{rate:,.0f} tokens per second")


class _Writer:
    """Writes texts, or user turns with their answers, by their indices."""

    def __init__(
        self,
        generator: Generator,
        texts: OwnTexts,
        on_progress: Callable[[Sequence[StreamDelta]], None],
    ) -> None:
        assert generator.tokenizer is not None  # of a tuning there is always one
        self._generator, self._texts, self._on_progress = generator, texts, on_progress
        self._tokenizer: Tokenizer = generator.tokenizer
        self._ends = generator.model.end_token_ids
        self._start, self._stop = self._ends_of_turn() if self._tokenizer.chat else ([], {})
        if not self._start:
            begin = generator.model.bos_token_id
            ids = self._tokenizer.encode("") or [self._ends[0] if begin is None else begin]
            self._start = ids

    def new_texts(self, kept: Sequence[Mapping[str, Any]], wave: int) -> Iterator[dict[str, Any]]:
        """Yield usable texts behind those that are kept, until there are as many as asked."""
        seen = {_key(text) for text in kept}
        count, begin = len(kept), kept[-1]["index"] + 1 if kept else 0
        index = begin // wave * wave  # as a run without an interruption does
        while count < self._texts.count:
            if index >= wave + _MOST_TRIED * self._texts.count:
                raise UsageError(
                    "data self",
                    f"{index:,} texts were written, of which {count:,} can be used, fewer than "
                    f"{self._texts.count:,}: the others are empty, repeat themselves or others, or "
                    "don't end; ask for fewer, raise max_length, or give a file",
                )
            for text in self._wave(range(index, index + wave), seen):
                if text["index"] >= begin and count < self._texts.count and _key(text) not in seen:
                    seen.add(_key(text))
                    count += 1
                    yield text
            index += wave

    def _wave(self, indices: range, seen: set[str]) -> list[dict[str, Any]]:
        """Return the usable texts of ``indices``; turns in ``seen`` are not answered again."""
        texts = [{"index": index, "seed": self._seed(index)} for index in indices]
        if self._tokenizer.chat is None:
            outputs = self._complete([self._start] * len(texts), texts, _FREE)
            found = ((text, self._cut(output)) for text, output in zip(texts, outputs, strict=True))
            return [text | columns for text, columns in found if columns]
        longest = max(1, self._texts.max_length // 2 - len(self._start))
        turns = self._complete([self._start] * len(texts), texts, _FREE | self._stop, most=longest)
        asked: list[dict[str, Any]] = []
        prompts: list[Sequence[int]] = []
        for text, turn in zip(texts, turns, strict=True):
            content = turn.text.strip()
            if turn.finish_reason != "stop" or not self._is_usable(turn) or content in seen:
                continue
            messages = [{"role": "user", "content": content}]
            with suppress(UsageError):  # a turn that the template refuses
                prompt = self._tokenizer.chat.encode(messages).token_ids
                if len(prompt) < self._texts.max_length:
                    asked.append(text | {"messages": messages})
                    prompts.append(prompt)
        seeds = [text | {"seed": text["seed"] + 1} for text in asked]
        answers = self._complete(prompts, seeds, _ANSWERS)
        return [
            text | {"messages": [*text["messages"], {"role": "assistant", "content": answer.text}]}
            for text, answer in zip(asked, answers, strict=True)
            if self._is_usable(answer)
            and self._is_whole(answer, Conversation((("user", text["messages"][0]["content"]),)))
        ]

    def _seed(self, index: int) -> int:
        return random.Random(f"{self._texts.seed}:{index}").getrandbits(63)

    def _complete(
        self,
        prompts: Sequence[Sequence[int]],
        texts: Sequence[Mapping[str, Any]],
        sampling: Mapping[str, Any],
        most: int | None = None,
    ) -> list[CompletionOutput]:
        """Continue ``prompts`` up to the maximum length, or by ``most`` tokens."""
        params = [
            SamplingParams.fixed(
                seed=text["seed"],
                max_tokens=most or self._texts.max_length - len(prompt),
                **sampling,
            )
            for text, prompt in zip(texts, prompts, strict=True)
        ]
        if not prompts:
            return []
        results = self._generator.generate(
            [list(prompt) for prompt in prompts], params, on_progress=self._on_progress
        )
        return [result.outputs[0] for result in results]

    def _ends_of_turn(self) -> tuple[list[int], dict[str, Any]]:
        """Return the ids before a user's content, and what ends it beside the end of text."""
        chat = self._tokenizer.chat
        assert chat is not None
        rendered = chat.render([{"role": "user", "content": _MARK}])
        before, _, after = rendered.partition(_MARK)
        start = self._tokenizer.encode(before.rstrip(" "), add_special_tokens=False)
        after = (after.strip().splitlines() or [""])[0]
        ids = self._tokenizer.encode(after, add_special_tokens=False)
        if ids and ids[0] in self._tokenizer.special_ids:
            return start, {"stop_token_ids": [ids[0]]}
        return start, {"stop": [after]} if after else {}

    def _is_usable(self, output: CompletionOutput) -> bool:
        """Return False for failed and empty texts, for loops, and for special tokens inside."""
        ids = output.token_ids[: -1 if output.finish_reason == "stop" else None]
        return (
            output.finish_reason in ("stop", "length")
            and bool(output.text.strip())
            and self._tokenizer.special_ids.isdisjoint(ids)
            and not is_looping(ids)
        )

    def _is_whole(self, output: CompletionOutput, prompt: Conversation | str) -> bool:
        """Return False for a text that was cut, and would be read as one that ends there.

        One that is read up to the maximum length is read without an end.
        """
        if output.finish_reason == "stop":
            return True
        text = output.text if isinstance(prompt, Conversation) else output.text[len(prompt) :]
        read = encode_example(Example(prompt, text, ""), self._tokenizer, NO_TEMPLATE, self._ends)
        return sum(map(len, read)) > self._texts.max_length

    def _cut(self, output: CompletionOutput) -> dict[str, str] | None:
        """Return a text's first word and the rest, as prompt and completion, if it is usable."""
        first = _FIRST_WORD.match(output.text)
        if first is None or not self._is_usable(output):
            return None
        prompt, completion = first.group(), output.text[first.end() :]
        if not completion.strip() or not self._is_whole(output, prompt):
            return None
        return {"prompt": prompt, "completion": completion}


def _key(text: Mapping[str, Any]) -> str:
    """Return what no two texts have in common: the user's turn, or the whole text."""
    if "messages" in text:
        return str(text["messages"][0]["content"])
    return f"{text['prompt']}{text['completion']}"


def is_looping(ids: Sequence[int]) -> bool:
    """Return whether a text ends in a passage that repeats itself, or repeats itself throughout.

    >>> is_looping([5, 6, 7, 8] * 4 + [5, 6]), is_looping(range(40))
    (True, False)
    """
    for period in range(1, len(ids) // _LOOP_TIMES + 1):
        end = ids[-max(_LOOP_TIMES * period, _LOOP_TOKENS) :]
        if len(ids) >= _LOOP_TOKENS and end[period:] == end[:-period]:
            return True
    grams = [tuple(ids[index : index + _GRAM]) for index in range(len(ids) - _GRAM + 1)]
    return len(ids) >= 2 * _LOOP_TOKENS and 2 * len(set(grams)) < len(grams)


def digest_of(model: str) -> str:
    """Return the digest of a checkpoint's weights and chat template."""
    from ...exporter.checkpoint.checkpoint import open_checkpoint
    from ...exporter.config import CheckpointSource

    checkpoint = open_checkpoint(CheckpointSource(model=model))
    template = b"" if checkpoint.chat is None else checkpoint.chat.content
    return sha256(checkpoint.source()["content"].encode() + template).hexdigest()
