"""Generate docs/benchmarks/drafts.md from the figures in docs/benchmarks/drafts/*.json.

PYTHONPATH=scripts python -m pages.drafts
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.record import ROOT, records

from skipdec.engines.host.console import markdown_table

FIGURES = ROOT / "docs" / "benchmarks" / "drafts"
PAGE = FIGURES.with_suffix(".md")
SMALL_MODEL = "drafts-pages"  # the directory of the checkpoint
_INTRODUCTION = """# Drafts on other texts, and other engines' drafts

`scripts/pages/drafts.py` generates this page from `docs/benchmarks/drafts/*.json`, which
`scripts/bench.py drafts` measures. A draft changes no text: skipdec's texts below are those of
full depth, token by token. So the only question is how many tokens a pass writes, and what that
gains. **The texts decide it.** Answers that copy from their prompt get five tokens a pass from
`lookup`, narrow texts two to four from `own`, code 1.3 from both, open prose 1.1: next to nothing.
Parts are chosen by what they are expected to gain, so `own+lookup` and `lookup+own` come to about
the same, on each kind of text close to the better part.

```sh
python scripts/bench.py drafts texts /tmp/drafts           # the texts, from this repository's pages
python scripts/bench.py drafts replay /tmp/drafts/prose.jsonl /tmp/drafts/code.jsonl \\
    /tmp/drafts/summaries.jsonl --tokenizer /tmp/drafts/tokenizer.json --name Pages
python scripts/bench.py drafts peers dev.csv --model examples/restaurants --work /tmp/drafts \\
    --drafts own lookup own+ends:3 --name examples/restaurants
```
"""
_REPLAYED = """## Replayed texts

No model runs here: people's texts stand for what an engine would write, and the runtime's drafters
and policy guess along. Texts that a small model writes repeat themselves, which would flatter
n-grams; these don't. Nothing depends on the machine. Tokens per pass count what passes write, the
first token of a text comes with its prompt; "last half" is that of the later half of the texts,
when `own` has seen the earlier half; "held" is the share of guessed tokens that were right; the
gain is the cost of one pass per token ÷ that of all passes, prompts left out, from costs that are
given, not measured: those that the policy assumes before it has measured any.

`scripts/bench.py drafts texts` makes the texts from this repository's own pages at one commit
(`made.json` names it). One Markdown page in three and one Python file in 24 are held out, by their
paths. *prose*: passages of 60 + 120 words of pages, without tables, code and headings. *code*:
passages of 16 + 16 lines of Python files. *summaries*: sections of up to 200 words, answered by
the first sentence of each paragraph. The tokenizer is a byte-level BPE, trained on the other pages
and on docstrings of numpy and transformers, read where they are installed. *dev* is E2E's
development set with first references, in the tokens of `examples/restaurants`. Texts come in an
order drawn by their digests, and every line of a table begins with an empty table of n-grams, if
nothing else is said.
"""
_SMALL_MODEL = """### The small model of these pages

4 layers of width 192, trained on the other pages from random weights:

```sh
skipdec tune --from-scratch layers=4,width=192,heads=4,positions=512 --vocab-size 2000 \\
    --data /tmp/drafts/train.jsonl --schedule full --learn-prompt --learning-rate 3e-3 -b 8 \\
    --gradient-accumulation 2 --max-length 448 --long-prompts drop --max-steps 180 -o drafts-pages
```

After 8 minutes of processor time its loss was 5.3 nats a token: it writes words, but neither
sense nor copies, and greedily it soon repeats itself. So its tokens per pass show what repetition
alone gives, and nothing about texts that people want; the replayed texts above do.
"""
_PEERS = """## Beside other engines' drafts

The same checkpoint and prompts, one prompt at a time, greedily, prompts included; ways take turns
every ten prompts, each round starts all processes anew. "Equal texts" and "gain" hold a draft
against the *same engine* without drafts; "as skipdec" counts the texts that equal skipdec's at full
depth, which rounding decides: skipdec and OpenVINO run int8 weights, transformers float32. Tokens
per pass leave the prompt's pass out; OpenVINO GenAI does not tell them. transformers' early exit
sets the number of layers that a model's configuration has, which its OPT ignores, so that drafts
would run every layer; here its decoder is made to heed it. Options are those of the peers' guides:
10 tokens of prompt lookup in transformers, an exit behind 3 layers, 5 tokens behind 3-grams in
OpenVINO GenAI.
"""


def main() -> None:
    """Draw the page."""
    draw(FIGURES, PAGE)


def draw(figures: Path, page: Path) -> None:
    """Write ``page`` from the files of ``figures``."""
    page.write_text(drafts_page(list(records(figures))), encoding="utf-8")


def drafts_page(machines: Sequence[Mapping[str, Any]]) -> str:
    """Return the whole page; ``machines`` are the documents of `records`."""
    lines = [_INTRODUCTION]
    replays = list(_parts(machines, "replay"))
    peers = list(_parts(machines, "peers"))
    if replays:
        lines.append(_REPLAYED)
    for _, name, part in replays:
        lines += [f"### {name}", "", f"{_setting(part)}", "", *replay_table(part), ""]
    if peers:
        lines.append(_PEERS)
    if any(part["model"] == SMALL_MODEL for _, _, part in peers):
        lines.append(_SMALL_MODEL)
    for processor, name, part in peers:
        lines += [f"### {name}", "", f"{_run(processor, part)}", "", *peers_table(part), ""]
    return "\n".join(lines)


def _parts(
    machines: Sequence[Mapping[str, Any]], kind: str
) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Yield the processor, the name and the figures of each part of a kind."""
    for machine in machines:
        for name, part in machine["parts"].items():
            if part["kind"] == kind:
                yield machine["processor"], name, part


def _setting(part: Mapping[str, Any]) -> str:
    costs = ", ".join(f"{cost:.2f}" for cost in part["costs"])
    before = part["before"]
    told = (
        f" `own` has counted {before['tokens']:,} tokens of other pages before." if before else ""
    )
    return (
        f"Vocabulary {part['vocabulary']:,}. "
        f"Passes over 1 to 8 tokens are taken to cost {costs}.{told} "
        f"{part['date']}, commit {part['commit']}."
    )


def replay_table(part: Mapping[str, Any]) -> Iterator[str]:
    """Yield a table with a line per file and draft text."""
    yield markdown_table(
        ("texts", "draft", "tokens per pass", "last half", "guessed per pass", "held", "gain"),
        [
            (
                f"{name} ({file['texts']}; {file['tokens']:,} tokens)",
                f"`{draft}`",
                f"{figures['tokens_per_pass']:.2f}",
                f"{figures['last_half']:.2f}",
                f"{figures['guessed_per_pass']:.2f}",
                f"{figures['held']:.0%}",
                f"{figures['gain']:.2f}×",
            )
            for name, file in part["files"].items()
            for draft, figures in file["drafts"].items()
        ],
    )


def _run(processor: str, part: Mapping[str, Any]) -> str:
    versions = ", ".join(f"{what} {version}" for what, version in part["versions"].items())
    rounds = len(next(iter(part["ways"].values()))["gains"])
    times = (
        "Others ran on the machine, so times and drafts that adapt are left out."
        if part["busy"]
        else "Ranges are those of rounds."
    )
    return (
        f"{part['model']} on {part['data']}: {part['prompts']} prompts, at most "
        f"{part['max_tokens']} tokens. {processor}, threads: {part['threads']}, rounds: {rounds}. "
        f"{times} {part['date']}, commit {part['commit']}, {versions}."
    )


def peers_table(part: Mapping[str, Any]) -> Iterator[str]:
    """Yield a table with a line per way, without what a busy machine changes."""
    prompts, busy = part["prompts"], part["busy"]
    headings = ("run as", "equal texts", "as skipdec", "tokens per pass")
    yield markdown_table(
        headings if busy else (*headings, "ms per token", "gain"),
        [
            (
                name,
                "" if is_plain(name) else f"{way['equal']} of {prompts}",
                f"{way['equal_to_ours']} of {prompts}",
                _or_dash(way["tokens_per_pass"] if measured(name, busy=busy) else None),
                *(() if busy else _times(name, way)),
            )
            for name, way in part["ways"].items()
        ],
    )


def _times(name: str, way: Mapping[str, Any]) -> tuple[str, str]:
    gain = "" if is_plain(name) else f"{with_range(way['gains'])}×"
    return with_range(way["milliseconds_per_token"]), gain


def is_plain(name: str) -> bool:
    """Return True for an engine without drafts: those have a comma in their names."""
    return "," not in name


def measured(name: str, *, busy: bool) -> bool:
    """Return True if a way's tokens per pass hold: drafts that adapt follow measured times."""
    return not busy or "`" not in name or "adapt=no" in name


def _or_dash(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def with_range(values: Sequence[float]) -> str:
    """Return the median, and the range if there are several values.

    >>> with_range([1.0, 3.0, 2.0])
    '2.00 (1.00–3.00)'
    """
    text = f"{median(values):.2f}"
    return text if len(values) == 1 else f"{text} ({min(values):.2f}–{max(values):.2f})"


if __name__ == "__main__":
    main()
