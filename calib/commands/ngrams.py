"""``skipdec ngrams``: count n-grams of a model's texts as initial tables for its drafts."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from ...engines.errors import counted
from ...engines.host.console import Part
from ...engines.host.installation import require_extra
from ...engines.host.options import AsJson, Quiet, from_options
from ..ngrams.config import NGramsConfig

if TYPE_CHECKING:
    from ..ngrams.ngrams import NGramsReport

EXAMPLES = """
Examples:

\b
skipdec ngrams SmolLM2-135M-Instruct --data self:2000 -o ngrams.json
  the model writes 2,000 chats, kept in ngrams.json.self.jsonl

\b
skipdec export SmolLM2-135M-Instruct --quantize int8-block \\
    --ngrams ngrams.json

\b
skipdec ngrams ./opt-e2e --data written.jsonl -o ngrams.json
  from texts that it wrote for your own prompts

Exit codes: 0 done, 1 failed, 2 usage, 3 environment, 130 interrupted.
"""


@from_options
def ngrams(config: NGramsConfig, *, quiet: Quiet = False, as_json: AsJson = False) -> None:
    """Count what follows n-grams in texts that the model wrote, for drafts of its bundles.

    Writes the file for --ngrams of export: drafts own then start from it, and the model is not
    changed. With --data self the model writes the texts itself.
    """
    from ...engines.host.progress import run_job

    require_extra("export", "skipdec ngrams")
    from ..data.own_texts import KEPT
    from ..ngrams.ngrams import write_ngrams

    run_job(
        partial(write_ngrams, config),
        _parts,
        done=lambda report: f"{report.output} is written",
        as_json=as_json,
        quiet=quiet,
        advice=None if config.data.own_texts is None else lambda: KEPT,
    )


def _parts(report: NGramsReport) -> Iterator[Part]:
    yield (
        f"{report.output}: {counted(report.ngrams, 'n-gram')} of {counted(report.tokens, 'token')} "
        f"in {counted(report.texts, 'text')}"
    )
