"""``skipdec generate``: continues prompts, given as text or as lines of JSON."""

from __future__ import annotations

from ...engines.errors import UsageError
from ...engines.host.options import from_options
from .options import GenerateOptions

EXAMPLES = """
Examples:

\b
skipdec generate opt-1.3b.skipdec "The capital of France is" --temperature 0

\b
cat letter.txt | skipdec generate opt-1.3b.skipdec --max-tokens 64

\b
skipdec generate opt-1.3b.skipdec -p "Once upon a time" --schedule 2x \\
    --max-tokens 64 --stream

\b
skipdec generate llama-1b.skipdec --chat --system "Be brief." \\
    -p "Who wrote Faust?"

\b
skipdec generate opt-1.3b.skipdec --input prompts.jsonl \\
    --output texts.jsonl --resume

\b
skipdec generate opt-1.3b.skipdec -p "Once upon a time" --schedule full \\
    --draft own+lookup

\b
head -3 prompts.jsonl | skipdec generate opt-1.3b.skipdec --input - \\
    --top-p 0.9 --seed 1

A pipe whose first line is not a JSON object is one prompt, without its last line feed.

Lines in: {"id": "a", "prompt": "Hello", "max_tokens": 8}. Only the prompt, a text or
token ids, or the "messages" of a chat, is required. A line may have a "schedule" and every sampling
option, with _ for -; its default id is its number.

Lines out, in the same order: {"id", "text", "token_ids", "finish_reason",
"layers_per_token", "layer_ranges"}, and with --draft "drafts"; for n above 1 {"id", "outputs",
"layer_ranges"}; for a bad line {"id", "line", "error"}, and the exit code is 1. Ctrl-C keeps
finished lines; --resume continues from there.

A checkpoint is exported once, into ~/.cache/skipdec.
"""


@from_options
def generate(options: GenerateOptions) -> None:
    """Continue prompts with the engines and the exit schedule of a bundle."""
    from .lines import open_lines, run_lines
    from .prompts import read_pipe, read_prompt, run_prompts, stdin

    options = options.exported()
    if options.input is not None:
        with open_lines(options) as lines:
            run_lines(options, lines)
    elif options.texts:
        run_prompts(options, [read_prompt() if text == "-" else text for text in options.texts])
    elif options.chat and stdin().isatty():
        _converse(options)
    elif isinstance(piped := read_pipe(), str):
        run_prompts(options, [piped])
    elif options.chat or options.stream or options.as_json:
        raise UsageError("generate", "--chat, --stream and --json need a prompt; stdin has lines")
    else:
        run_lines(options, piped)


def _converse(options: GenerateOptions) -> None:
    """Hold a conversation, as ``skipdec chat`` does. Raises UsageError for what needs a prompt."""
    from .conversation import Conversation

    if options.as_json or options.params.n > 1 or options.template_variables:
        raise UsageError(
            "generate", "--json, --n and template_variables need a prompt; give one by -p"
        )
    with options.open_generator() as generator:
        Conversation(generator, options.params, system=options.system, quiet=options.quiet).run()
