"""Model cards: README.md with the metadata block of the Hugging Face hub."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ...engines.host.console import markdown_table
from ...engines.manifest import ModelSpec

_LICENCE = (
    "<!-- Choose a licence: add `license: …` to the block above. Tuned weights are subject to the "
    "licences of their base model and of their data. -->"
)


def model_card(
    model: ModelSpec, title: str, sections: Iterable[str], *, tags: Sequence[str] = ()
) -> bytes:
    """Return the README.md of ``model``; deterministic, since it contains no date.

    The metadata block has the library, the task, tags and, if the model has a hub id, its base, but
    no licence, which only the owner can choose. ``sections`` are Markdown.
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
    """Return a Markdown table of names and values, without a heading."""
    return markdown_table(("", ""), ((name, value.replace("|", "\\|")) for name, value in facts))


def code(text: str) -> str:
    r"""Return user text as inline code on one line, with line breaks as ``\n``.

    >>> code("{prompt}\nTL;DR:")
    '`{prompt}\\nTL;DR:`'
    """
    escaped = text.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
    fence = "``" if "`" in escaped else "`"
    padding = " " if "`" in escaped else ""
    return f"{fence}{padding}{escaped}{padding}{fence}"


def structure(model: ModelSpec) -> str:
    """Describe the model in one line: ``OPT, 12 layers of width 768, 12 heads, …``."""
    return (
        f"{model.family.upper()}, {model.num_layers} layers of width {model.hidden_size}, "
        f"{model.num_heads} heads, {model.vocab_size:,} tokens, {model.max_seq_len:,} positions"
    )
