"""``skipdec inspect``: the contents of a bundle and the bytes that its schedules read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Annotated, Any

from pydantic import Field

from ...engines.bundle import Verify
from ...engines.checking import Option, ValidatedConfig
from ...engines.host.console import Part, Table, print_report
from ...engines.host.options import AsJson, BundlePath, from_options
from ..measuring.config import Section, Workload

_LARGE_MIXING_LOSS = 1.25  # a linear decay from 16 layers to 8 stays below it

EXAMPLES = """
Examples:

\b
skipdec inspect opt-1.3b --show schedule --schedule 2x --schedule 4x

\b
skipdec inspect opt-1.3b --show schedule \\
    --schedule linear:max=24,min=4,horizon=64 --slots 8

\b
skipdec inspect opt-1.3b --show memory --batch-size 8 --prompt-len 512 \\
    --json
"""


class InspectOptions(ValidatedConfig):
    """What ``skipdec inspect`` shows, and what it checks."""

    sections: Annotated[tuple[Section, ...], Option("--show")] = Field(
        default=("memory", "schedule"), description="repeat for several"
    )
    schedules: Annotated[tuple[str, ...], Option("--schedule")] = Field(
        default=(), description="schedule to show; repeat for several (presets 2x to 5x)"
    )
    verify: Annotated[Verify, Option()] = Field(
        default="graphs", description="full also hashes the weights"
    )


@from_options
def inspect(
    bundle: BundlePath, workload: Workload, options: InspectOptions, *, as_json: AsJson = False
) -> None:
    """Show a bundle's engines, tensors, memory, and the bytes that its schedules read.

    Fewer bytes are not a speed-up; bench measures that on this machine, prompts included.
    """
    from ..measuring.inspection import inspect_bundle

    document = inspect_bundle(bundle, workload=workload, **dict(options))
    print_report(document, _parts(document), as_json=as_json)


def _parts(document: dict[str, Any]) -> Iterator[Part]:
    model, precision = document["model"], document["precision"]
    yield (
        f"{model['name']}: {model['num_layers']} layers, hidden {model['hidden_size']}, "
        f"{document['target']}, kernels {document['kernels']}, {precision['dtype']}, "
        f"quantize {precision['quantize']}, "
        f"schedule {document['bundle_schedule']}"
    )
    if defaults := document["sampling_defaults"]:
        listed = ", ".join(f"{name} {value:g}" for name, value in defaults.items())
        yield f"sampling unless a request says otherwise: {listed}"
    if (draft := document["bundle_draft"]) is not None:
        yield f"--draft auto is {draft}"
    if (ngrams := document["ngrams"]) is not None:
        yield f"drafts own begin with the n-grams of {ngrams}"
    if (template := document["prompt_template"]) is not None:
        yield f"text prompts are put into {template!r}"
    if (chat := document["chat_template"]) is not None:
        yield f"messages are rendered by {chat['path']} (--chat)"
    if (drafts := document["draft_engines"]) is not None:
        yield _drafts_line(drafts)
    drafts = document["drafts"]
    exact = "exact (--draft changes no text)" if drafts["exact"] else drafts["problem"]
    yield f"drafts: {exact}"
    sections: dict[Section, Callable[[Any], Iterator[Part]]] = {
        "engines": _engines,
        "io": _tensors,
        "memory": _memory,
        "schedule": _schedules,
    }
    for section, parts in sections.items():
        if section in document:
            yield ""
            yield from parts(document[section])


def _drafts_line(drafts: dict[str, Any]) -> str:
    """Describe in one line the engines that only drafts run."""
    parts = []
    if (reads := drafts["reads"]) is not None:
        depths, size = ", ".join(map(str, reads)), _size(drafts["step_bytes"])
        parts.append(
            f"a layer that reads states after {depths} layers, for {drafts['tokens']} tokens, "
            f"{size}"
        )
    if (tokens := drafts["head_tokens"]) is not None:
        parts.append(f"a head of the first {tokens} of {drafts['vocab_size']} tokens")
    return f"for drafts: {'; '.join(parts)}"


def _engines(engines: list[dict[str, Any]]) -> Iterator[Part]:
    rows = [
        (
            engine["name"],
            _size(engine["graph_bytes"]),
            _size(engine["weights_bytes"]),
            _size(engine["step_bytes"]),
        )
        for engine in engines
    ]
    headings = ("engine", "graph", "weights", "read per token")
    yield Table(headings, rows, "engines")


def _tensors(groups: list[dict[str, Any]]) -> Iterator[Part]:
    rows = []
    for group in groups:
        names = group["engines"]
        engines = names[0] if len(names) == 1 else f"{names[0]} … {names[-1]}"
        for arrow, key in (("→", "inputs"), ("←", "outputs")):
            for tensor in group[key]:
                shape = "×".join(map(str, tensor["shape"])) or "scalar"
                name = f"{arrow} {tensor['name']}"
                rows.append((engines, name, tensor["role"], tensor["dtype"], shape))
    headings = ("engine", "tensor", "role", "type", "shape")
    yield Table(headings, rows, "inputs and outputs")


def _memory(memory: dict[str, Any]) -> Iterator[Part]:
    workload = (
        f"{memory['batch_size']} × ({memory['prompt_length']} + {memory['num_tokens']}) tokens"
    )
    rows = [
        ("weights on disk", _size(memory["weights_bytes"])),
        (
            f"KV cache per token in {memory['kv_dtype']}, all layers",
            _size(memory["kv_bytes_per_token"]),
        ),
        *(
            (f"KV cache of {workload}, {entry['schedule']}", _size(entry["bytes"]))
            for entry in memory["kv_cache"]
        ),
    ]
    yield Table(("item", "bytes"), rows, "memory")


def _schedules(schedules: list[dict[str, Any]]) -> Iterator[Part]:
    rows = [
        (
            entry["schedule"],
            f"{entry['realised_depth']:.2f}",
            _size(entry["weight_bytes_per_step"]),
            _size(entry["kv_bytes_per_step"]),
            f"{entry['bytes_ratio']:.2f}×",
            *([f"{entry['mixing_loss']:.2f}"] if "mixing_loss" in entry else []),
        )
        for entry in schedules
    ]
    headings = ["schedule", "depth", "weights\nper step", "KV\nper step", "fewer\nbytes"]
    if schedules and "mixing_loss" in schedules[0]:
        headings.append("mixing\nloss")
    yield Table(headings, rows, "bytes that the steps after the prompt read")
    for entry in schedules:
        if entry.get("mixing_loss", 1.0) > _LARGE_MIXING_LOSS:
            yield (
                f"{entry['schedule']} reads {entry['mixing_loss']:.2f} times the bytes if rows "
                "are at different depths; for a server lower max, or admit rows together "
                "(admission gang)"
            )


def _size(nbytes: int) -> str:
    """Return a size in decimal units: 1 MB is 10^6 bytes."""
    if nbytes < 10**6:
        return f"{nbytes / 10**3:.1f} kB"
    return f"{nbytes / 10**6:,.1f} MB" if nbytes < 10**9 else f"{nbytes / 10**9:,.2f} GB"
