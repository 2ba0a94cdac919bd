"""``skipdec generate -p``: completions of a few prompts, as text or as one JSON value."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import IO

from ...engines.errors import UsageError
from ...engines.host.console import print_json, stderr_console
from ...engines.host.signals import Interruption
from ..requests.records import json_object, split_lines
from ..tokens.outputs import Drafts, RequestOutput, StreamDelta
from .options import GenerateOptions
from .progress import GenerationProgress
from .results import result_line, to_bytes

_MAX_PROMPT = 16 * 2**20  # bytes


def run_prompts(options: GenerateOptions, prompts: Sequence[str]) -> None:
    """Continue ``prompts``, print the results on stdout and the figures on stderr.

    Ctrl-C prints the results so far and exits with 130.
    """
    from ...engines.host.progress import ConsoleProgress

    with options.open_generator() as generator, Interruption() as interruption:
        requests = generator.make_requests(options.prompts_of(prompts), options.params)
        schedules = generator.resolve_schedules(requests)
        options.warn_if_untuned(generator, schedules)
        total = len(prompts) * options.params.n
        quiet = options.quiet or options.stream
        draft = generator.drafts.resolve()
        with (
            ConsoleProgress(quiet=quiet) as events,
            GenerationProgress(schedules, total, events, generator.kernels, draft) as progress,
        ):

            def on_progress(deltas: Sequence[StreamDelta]) -> None:
                progress.update(deltas)
                if options.stream:
                    _print_deltas(deltas, as_json=options.as_json, marks_drafts=draft is not None)

            outputs = generator.generate_requests(
                requests, schedules, cancelled=interruption.is_requested, on_progress=on_progress
            )
            for output in outputs:
                progress.count_drafts(output.drafts or Drafts())
        if not options.stream:
            _print_outputs(prompts, outputs, progress, as_json=options.as_json)
        elif not options.as_json:
            sys.stdout.write("\n")
        if not options.quiet:
            stderr_console().print(progress.summary_text(options.params), soft_wrap=True)
    interruption.raise_again()


def _print_deltas(deltas: Sequence[StreamDelta], *, as_json: bool, marks_drafts: bool) -> None:
    fields = ["index", "text", "token_ids", "finish_reason", "layers"]
    if marks_drafts:
        fields.append("drafted")
    for delta in deltas:
        if as_json:
            line = {"id": delta.request_index} | {name: getattr(delta, name) for name in fields}
            sys.stdout.buffer.write(to_bytes(line))
            sys.stdout.buffer.flush()
        elif delta.text:
            sys.stdout.write(delta.text)
            sys.stdout.flush()


def _print_outputs(
    prompts: Sequence[str],
    outputs: Sequence[RequestOutput],
    progress: GenerationProgress,
    *,
    as_json: bool,
) -> None:
    """Print one completion as it is, several under a heading each, or all as one JSON object.

    A heading has the prompt as it was given, if there are several, and the completion's number.
    """
    if as_json:
        results = [result_line(index, output) for index, output in enumerate(outputs)]
        print_json(progress.summary() | {"results": results})
        return
    if len(outputs) == 1 and len(outputs[0].outputs) == 1:
        print(outputs[0].outputs[0].text)
        return
    for prompt, request in zip(prompts, outputs, strict=True):
        for completion in request.outputs:
            words = [prompt] if len(prompts) > 1 else []
            words += [f"[{completion.index}]"] if len(request.outputs) > 1 else []
            print(f"# {' '.join(words)}\n{completion.text}\n")


def stdin() -> IO[bytes]:
    """Return standard input as bytes. Raises UsageError if it is closed."""
    if sys.stdin is None:
        raise UsageError("stdin", "is closed; name a file or give prompts")
    return sys.stdin.buffer


def _prompt_of(content: bytes) -> str:
    """Return the prompt in a pipe: all of it except one line feed at its end.

    Raises UsageError if it is empty, not UTF-8 or longer than 16 MiB.
    """
    if len(content) > _MAX_PROMPT:
        raise UsageError("stdin", f"is longer than {_MAX_PROMPT:,} bytes; give lines by --input -")
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise UsageError("stdin", f"is not UTF-8 at byte {error.start}") from error
    prompt = text.removesuffix("\n").removesuffix("\r")
    if not prompt:
        raise UsageError("stdin", "is empty; give a prompt, by -p or after the bundle, or --input")
    return prompt


def read_prompt() -> str:
    """Return all of standard input as one prompt; raises as ``_prompt_of``."""
    return _prompt_of(stdin().read(_MAX_PROMPT + 1))


def read_pipe() -> str | Iterator[bytes]:
    """Read a pipe: lines of JSON if the first is an object, else one prompt.

    Raises UsageError for a terminal, because the user was not asked to type.
    """
    file = stdin()
    if file.isatty():
        raise UsageError("generate", "give a prompt, by -p or after the bundle, or --input")
    begin: list[bytes] = []
    for line in (lines := split_lines(file)):
        begin.append(line)
        if line.strip():
            break
    if begin and json_object(begin[-1]) is not None:
        return chain(begin, lines)
    return _prompt_of(b"".join(begin) + file.read(_MAX_PROMPT + 1))
