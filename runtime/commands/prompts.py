"""``skipdec generate -p``: completions of a few prompts, for people or as one JSON value."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any

from ...engines.host.console import print_json, stderr_console
from ...engines.host.signals import Interruption
from ..tokens.outputs import RequestOutput, StreamDelta
from .options import GenerateOptions
from .progress import GenerationProgress
from .results import result_line, to_bytes


def run_prompts(options: GenerateOptions, prompts: Sequence[str]) -> None:
    """Continue ``prompts``, print the results on stdout and the figures on stderr.

    Ctrl-C prints what there is so far and exits with 130.
    """
    from ...engines.host.progress import ConsoleProgress

    with options.open_generator() as generator, Interruption() as interruption:
        requests = generator.make_requests(prompts, options.params)
        schedules = generator.resolve_schedules(requests, options.opening.schedule)
        options.warn_if_untuned(generator, schedules)
        total = len(prompts) * options.params.n
        quiet = options.quiet or options.stream
        outputs: list[RequestOutput] = []
        with (
            ConsoleProgress(quiet=quiet) as events,
            GenerationProgress(schedules, total, events, generator.kernels) as progress,
        ):
            if options.stream:
                deltas = generator.stream_requests(
                    requests, schedules, cancelled=interruption.is_requested
                )
                _print_deltas(deltas, progress, as_json=options.as_json)
            else:
                outputs = generator.generate_requests(
                    requests,
                    schedules,
                    cancelled=interruption.is_requested,
                    on_progress=progress.update,
                )
        if outputs and options.as_json:
            print_json(_document(outputs, progress))
        elif outputs:
            _print_texts(outputs)
        if not options.quiet:
            stderr_console().print(progress.summary_text(options.params), soft_wrap=True)
    interruption.raise_again()


def _print_deltas(
    deltas: Iterator[StreamDelta], progress: GenerationProgress, *, as_json: bool
) -> None:
    with closing(deltas):  # type: ignore[type-var]  # a generator, which has close
        for delta in deltas:
            progress.update([delta])
            if as_json:
                sys.stdout.buffer.write(to_bytes(_delta_line(delta)))
                sys.stdout.buffer.flush()
            elif delta.text:
                sys.stdout.write(delta.text)
                sys.stdout.flush()
    if not as_json:
        sys.stdout.write("\n")


def _delta_line(delta: StreamDelta) -> dict[str, Any]:
    return {
        "id": delta.request_index,
        "index": delta.index,
        "text": delta.text,
        "token_ids": delta.token_ids,
        "finish_reason": delta.finish_reason,
        "layers": delta.layers,
    }


def _document(outputs: Sequence[RequestOutput], progress: GenerationProgress) -> dict[str, Any]:
    results = [result_line(place, output) for place, output in enumerate(outputs)]
    return progress.summary() | {"results": results}


def _print_texts(outputs: Sequence[RequestOutput]) -> None:
    """One completion as it is; several under a heading each."""
    if len(outputs) == 1 and len(outputs[0].outputs) == 1:
        print(outputs[0].outputs[0].text)
        return
    for request in outputs:
        for completion in request.outputs:
            number = f" [{completion.index}]" if len(request.outputs) > 1 else ""
            print(f"# {request.prompt}{number}\n{completion.text}\n")
