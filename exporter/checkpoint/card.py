"""Model cards: README.md with the block that the hub reads, as huggingface_hub writes it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ...engines.host.console import markdown_table
from ...engines.manifest import ModelSpec

_LICENCE = (
    "<!-- The licence is yours to choose: add `license: …` to the block above. Weights that were "
    "tuned carry on what the licences of their base model and of their data ask for. -->"
)


def model_card(
    model: ModelSpec, title: str, sections: Iterable[str], *, tags: Sequence[str] = ()
) -> bytes:
    """Return the README.md of ``model``: equal arguments give equal bytes, there is no date in it.

    The block names the library, the task, tags and, where the model has a hub's id, its base; no
    licence, which only its owner can give. ``sections`` are Markdown.
    """
    from huggingface_hub.repocard_data import ModelCardData

    data = ModelCardData(
        library_name="skipdec",
        pipeline_tag="text-generation",
        base_model=model.name if "/" in model.name else None,
        tags=["skipdec", "skipdecode", model.family, *tags],
    )
    parts = (f"---\n{data.to_yaml()}\n---", f"# {title}", _LICENCE, *sections)
    return ("\n\n".join(parts) + "\n").encode()


def facts_table(facts: Iterable[tuple[str, str]]) -> str:
    """A Markdown table of names and values, without a heading."""
    return markdown_table(("", ""), ((name, value.replace("|", "\\|")) for name, value in facts))


def code(text: str) -> str:
    r"""Inline code on one line, a line break as ``\n``: text of the user's in a card.

    >>> code("{prompt}\nTL;DR:")
    '`{prompt}\\nTL;DR:`'
    """
    escaped = text.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
    fence = "``" if "`" in escaped else "`"
    padding = " " if "`" in escaped else ""
    return f"{fence}{padding}{escaped}{padding}{fence}"


def structure(model: ModelSpec) -> str:
    """What the model is, in a line: ``OPT, 12 layers of width 768, 12 heads, …``."""
    return (
        f"{model.family.upper()}, {model.num_layers} layers of width {model.hidden_size}, "
        f"{model.num_heads} heads, {model.vocab_size:,} tokens, {model.max_seq_len:,} positions"
    )
