"""``ngrams``: count what follows n-grams in a model's texts, for drafts of its bundles."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path

from ...engines.bundle import replace_file, require_place
from ...engines.checking import FrozenModel, Problems
from ...engines.errors import counted
from ...engines.host.events import Events
from ...exporter.checkpoint.checkpoint import Checkpoint, open_checkpoint
from ...exporter.config import CheckpointSource
from ...runtime.drafting.known_ngrams import count_ngrams, ngrams_json
from ..data.data import Example, load_examples
from ..data.lengths import opened_length, text_length
from ..data.own_texts import OwnTexts, own_texts_path
from ..data.self_written import own_examples
from ..data.tokenised import ExampleEncoder, tokenise
from .config import NGramsConfig


class NGramsReport(FrozenModel):
    """The numbers of ``texts``, their ``tokens`` without prompts, and distinct ``ngrams``."""

    output: Path
    texts: int
    tokens: int
    ngrams: int
    warnings: tuple[str, ...]


def write_ngrams(config: NGramsConfig, events: Events | None = None) -> NGramsReport:
    """Count n-grams of the completions in ``config.data`` and write them to ``config.output``.

    Texts that the model writes itself are kept beside the output, as by `tune`. Raises SkipDecError
    before any work if something is wrong: an output that can't be written, bad lines of the data, a
    model without a tokenizer or end of text.
    """
    NGramsConfig.require(config)
    events, problems = events or Events(), Problems("ngrams")
    output = config.output.absolute()
    problems.attempt(require_place, config.output, force=config.force, data=config.data.path)
    is_own = config.data.own_texts is not None
    examples = None if is_own else problems.attempt(load_examples, config.data)
    source = CheckpointSource(model=config.model, max_seq_len=opened_length(config.max_length))
    checkpoint = problems.attempt(open_checkpoint, source)
    if checkpoint is None or problems.errors:
        raise problems.error()
    with closing(checkpoint.open_tokenizer()) as tokenizer:
        model = checkpoint.model
        longest = text_length(config.max_length, config.data, model)
        if examples is None:
            examples = _own_examples(config, checkpoint, longest, events)
        encoder = ExampleEncoder.of(model, tokenizer, config.data, checkpoint.prompt_template)
        data = tokenise(examples, replace(encoder, max_length=longest))
    # The model's own texts were meant to be cut when it wrote them.
    warnings = (*checkpoint.warnings, *(() if is_own else data.warnings))
    events.planned(f"{model.name}: {counted(len(data.examples), 'text')}", warnings)
    ngrams = count_ngrams(
        ((*each.prompt_token_ids, *each.completion_token_ids), len(each.prompt_token_ids))
        for each in data.examples
    )
    replace_file(output, ngrams_json(ngrams).encode())
    return NGramsReport(
        output=config.output,
        texts=len(data.examples),
        tokens=sum(len(each.completion_token_ids) for each in data.examples),
        ngrams=len(ngrams),
        warnings=warnings,
    )


def _own_examples(
    config: NGramsConfig, checkpoint: Checkpoint, longest: int, events: Events
) -> list[Example]:
    assert config.data.own_texts is not None
    output = config.output.absolute()
    texts = OwnTexts(
        path=own_texts_path(output),
        checkpoint=checkpoint,
        count=config.data.own_texts,
        max_length=longest,
        seed=config.seed,
    )
    work = output.with_name(f".{output.name}.writing")
    return own_examples(texts, work, may_use_gpu=True, events=events)
