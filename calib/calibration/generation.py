"""Generate completions with the runtime, to observe activations in the model's own text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from ...engines.backends.session import open_backend
from ...engines.bundle import EngineBundle
from ...engines.errors import UsageError
from ...exporter.checkpoint.checkpoint import Checkpoint
from ...runtime.generator import Generator
from ...runtime.schedule import ExitSchedule
from ...runtime.tokens.outputs import StreamDelta
from ...runtime.tokens.sampling import SamplingParams
from ..data.rows import raise_problems
from ..data.tokenised import TokenisedExample

_FREE_FIELDS = {"name", "max_seq_len"}  # a bundle may be renamed or hold fewer positions


def open_writer(path: Path, checkpoint: Checkpoint) -> EngineBundle:
    """Open the bundle that writes the completions; no engine is loaded.

    Raises BundleError, and UsageError with every difference, if the bundle was not exported from
    ``checkpoint``: another structure, tokenizer or weights, which are hashed for it. Any precision
    and target will do.
    """
    bundle = EngineBundle.open(path.expanduser(), verify="full")
    built = bundle.manifest.model.model_dump(exclude=_FREE_FIELDS)
    wanted = checkpoint.model.model_dump(exclude=_FREE_FIELDS)
    problems = [
        f"{field} is {built[field]!r} in the bundle, {wanted[field]!r} in the checkpoint"
        for field in wanted
        if built[field] != wanted[field]
    ]
    tokenizer = bundle.manifest.tokenizer
    stored = None if tokenizer is None else bundle.read(tokenizer)
    if stored != checkpoint.tokenizer_json:
        problems.append("its tokenizer is not the checkpoint's")
    if not problems and bundle.manifest.source.get("content") != checkpoint.source()["content"]:
        problems.append("its weights are not the checkpoint's")
    if problems:
        problems[-1] += "; give a bundle that was exported from this checkpoint"
        raise UsageError(f"--generate-with {path}", *problems)
    return bundle


def check_room(examples: Sequence[TokenisedExample], num_tokens: int, bundle: EngineBundle) -> None:
    """Raise UsageError, naming rows, unless ``num_tokens`` more tokens fit after every prompt."""
    positions = bundle.manifest.model.max_seq_len
    raise_problems(
        "--generate-tokens",
        [
            f"{example.source}: the prompt has {length} tokens and {num_tokens} more would be "
            f"generated; the bundle holds {positions} positions; lower --generate-tokens, or "
            "shorten the row"
            for example in examples
            if (length := len(example.prompt_token_ids)) + num_tokens > positions
        ],
    )


def generate_completions(
    bundle: EngineBundle,
    examples: Sequence[TokenisedExample],
    schedule: ExitSchedule,
    num_tokens: int,
    text_generated: Callable[[], None],
) -> tuple[TokenisedExample, ...]:
    """Return ``examples`` with completions generated greedily by ``bundle`` at ``schedule``.

    Each completion ends at the end-of-text token or after ``num_tokens``. The bundle's engines stay
    in memory until all are written; ``text_generated`` is called after each.
    """

    def count(deltas: Sequence[StreamDelta]) -> None:
        for delta in deltas:
            if delta.finish_reason is not None:
                text_generated()

    prompts = [example.prompt_token_ids for example in examples]
    params = SamplingParams(temperature=0.0, max_tokens=num_tokens)
    with Generator(bundle, open_backend(bundle.manifest.target)) as generator:
        results = generator.generate(prompts, params, schedule=schedule, on_progress=count)
    return tuple(
        replace(example, completion_token_ids=result.outputs[0].token_ids)
        for example, result in zip(examples, results, strict=True)
    )
