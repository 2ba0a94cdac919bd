"""``skipdec generate``: text from prompts, or lines of JSON from lines of JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ...engines.host.console import reports_errors

_EXAMPLES = """
[bold]Examples[/bold]

skipdec generate opt-1.3b.skipdec -p "The capital of France is" --temperature 0

skipdec generate opt-1.3b.skipdec -p "Once upon a time" --schedule 2x --max-tokens 64 --stream

skipdec generate opt-1.3b.skipdec --input prompts.jsonl --output texts.jsonl --resume

head -3 prompts.jsonl | skipdec generate opt-1.3b.skipdec --input - --top-p 0.9 --seed 1

[bold]Lines in[/bold]: {"id": "a", "prompt": "Hello", "max_tokens": 8}. "prompt_token_ids" may stand
for "prompt"; sampling fields have the names of the options, with _ for -.

[bold]Lines out[/bold], in the same order: {"id", "text", "token_ids", "finish_reason",
"layers_per_token"}; for n above 1 {"id", "outputs"}; for a bad line {"id", "line", "error"}, and
the exit code is 1. Ctrl-C keeps what was finished; --resume goes on from there.

Values in round brackets are the defaults.
"""

_SAMPLING = "Sampling"
_RUNNING = "Running"


def register(app: typer.Typer) -> None:
    """Add ``generate`` to ``app``."""
    app.command("generate", epilog=_EXAMPLES)(generate)


def _sampling(*names: str, text: str) -> Any:  # noqa: ANN401  (typer's own option type)
    return typer.Option(*names, help=text, rich_help_panel=_SAMPLING)


def _running(*names: str, text: str, **options: Any) -> Any:  # noqa: ANN401
    return typer.Option(*names, help=text, rich_help_panel=_RUNNING, **options)


@reports_errors
def generate(
    bundle: Annotated[Path, typer.Argument(metavar="BUNDLE", help="a bundle's directory")],
    prompt: Annotated[
        list[str] | None, typer.Option("-p", "--prompt", metavar="TEXT", help="may be repeated")
    ] = None,
    input_: Annotated[
        str | None, typer.Option("--input", metavar="FILE.jsonl|-", help="lines; - is stdin")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", metavar="FILE.jsonl", help="else stdout")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="skip ids that --output already holds")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="replace --output")] = False,
    stream: Annotated[bool, typer.Option("--stream", help="text of -p as it comes")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="results of -p, or figures of --output, as JSON")
    ] = False,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="nothing on stderr")] = False,
    schedule: Annotated[
        str | None,
        _running("--schedule", text="full, 2x, linear:max=16,min=8,… or a file (bundle's own)"),
    ] = None,
    device: Annotated[
        str | None, _running("--device", text="cpu, cuda or cuda:1 (cpu; TensorRT: cuda)")
    ] = None,
    threads: Annotated[int | None, _running("--threads", text="(all cores)", min=1)] = None,
    max_batch_size: Annotated[
        int, _running("--max-batch-size", text="most completions at once", min=1)
    ] = 8,
    kv_memory: Annotated[
        str | None,
        _running("--kv-memory", text="most memory of KV caches, e.g. 2GiB (half of all)"),
    ] = None,
    max_tokens: Annotated[
        int | None, _sampling("--max-tokens", text="0: as many as the model can (16)")
    ] = None,
    temperature: Annotated[
        float | None, _sampling("--temperature", text="0: the most probable token (1)")
    ] = None,
    top_k: Annotated[
        int | None, _sampling("--top-k", text="only the k most probable tokens (off)")
    ] = None,
    top_p: Annotated[
        float | None, _sampling("--top-p", text="only the most probable with this sum (1)")
    ] = None,
    min_p: Annotated[
        float | None, _sampling("--min-p", text="only above this share of the best's (0)")
    ] = None,
    repetition_penalty: Annotated[
        float | None, _sampling("--repetition-penalty", text="above 1: fewer repetitions (1)")
    ] = None,
    presence_penalty: Annotated[
        float | None, _sampling("--presence-penalty", text="-2 to 2, for tokens in the output (0)")
    ] = None,
    frequency_penalty: Annotated[
        float | None, _sampling("--frequency-penalty", text="-2 to 2, per occurrence (0)")
    ] = None,
    seed: Annotated[int | None, _sampling("--seed", text="of each prompt's own stream")] = None,
    n: Annotated[int | None, _sampling("--n", text="completions of each prompt (1)")] = None,
    min_tokens: Annotated[
        int | None, _sampling("--min-tokens", text="before anything stops the text (0)")
    ] = None,
    stop: Annotated[
        list[str] | None, _sampling("--stop", text="text that ends it; may be repeated")
    ] = None,
    stop_token_ids: Annotated[
        list[int] | None, _sampling("--stop-token-id", text="may be repeated")
    ] = None,
    ignore_eos: Annotated[
        bool | None, _sampling("--ignore-eos", text="go on after the end of text")
    ] = None,
    include_stop_str_in_output: Annotated[
        bool | None, _sampling("--include-stop-str-in-output", text="show what ended it")
    ] = None,
    keep_special_tokens: Annotated[
        bool, _sampling("--keep-special-tokens", text="show special tokens")
    ] = False,
    logprobs: Annotated[
        int | None, _sampling("--logprobs", text="log-probabilities of the k best (off)")
    ] = None,
) -> None:
    """Continue prompts with the engines and the exit schedule of a bundle."""
    from ..tokens.sampling import SamplingParams
    from .lines import run_lines
    from .options import GenerateOptions
    from .prompts import run_prompts

    given: dict[str, Any] = {
        "max_tokens": max_tokens,
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
        "repetition_penalty": repetition_penalty,
        "presence_penalty": presence_penalty,
        "frequency_penalty": frequency_penalty,
        "seed": seed,
        "n": n,
        "min_tokens": min_tokens,
        "stop": stop,
        "stop_token_ids": stop_token_ids,
        "ignore_eos": ignore_eos,
        "include_stop_str_in_output": include_stop_str_in_output,
        "skip_special_tokens": not keep_special_tokens,
        "logprobs": logprobs,
    }
    fields = {name: value for name, value in given.items() if value is not None}
    if max_tokens == 0:
        fields["max_tokens"] = None
    options = GenerateOptions(
        bundle=bundle,
        prompts=tuple(prompt or ()),
        input=input_,
        output=output,
        resume=resume,
        force=force,
        stream=stream,
        as_json=as_json,
        quiet=quiet,
        schedule=schedule,
        device=device,
        threads=threads,
        max_batch_size=max_batch_size,
        kv_memory=kv_memory,
        params=SamplingParams(**fields),
    )
    if input_ is None:
        run_prompts(options)
    else:
        run_lines(options)
