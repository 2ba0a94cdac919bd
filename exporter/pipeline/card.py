"""The model card of a bundle: its model, origin and schedule, and the savings from skipping."""

from __future__ import annotations

from ...engines.host.console import markdown_table
from ...engines.manifest import Manifest
from ...runtime.measuring.cost import CostModel
from ...runtime.schedule import ExitSchedule
from ...runtime.schedule.text import format_schedule
from ..checkpoint.card import code, facts_table, model_card, structure

_PROMPT_LENGTH, _NUM_TOKENS = 128, 64  # as in the predictions of `skipdec inspect`, if they fit


def bundle_card(manifest: Manifest, schedule: ExitSchedule) -> bytes:
    """Return README.md for the bundle of ``manifest`` with the default ``schedule``.

    All figures follow from the manifest: equal bundles have equal cards.
    """
    model, precision = manifest.model, manifest.precision
    name = model.name.rpartition("/")[2]
    facts = {
        "model": structure(model),
        "precision": f"{precision.dtype}, weights {_quantization(manifest)}{_cache(manifest)}",
        "runs on": code(manifest.target) + _kernels(manifest),
        "for drafts": _drafts(manifest),
        "exit schedule, as exported": code(format_schedule(schedule)),
        "prompt template": code(manifest.prompt_template or "{prompt}"),
        "weights of": ", ".join(f"{key} {code(manifest.source[key])}" for key in manifest.source),
        "size": f"{sum(record.size for record in manifest.files) / 1e6:,.1f} MB",
        "made with": ", ".join(f"{key} {text}" for key, text in manifest.tool_versions.items()),
    }
    return model_card(
        model,
        f"{name}, compiled layer by layer",
        (
            "Engines for skipdec, one per decoder layer: each generated token runs only the layers "
            "that an exit schedule names (SkipDecode, arXiv:2307.02628).",
            facts_table((key, text) for key, text in facts.items() if text),
            _speed(manifest, schedule),
            "```sh\nhf download OWNER/NAME --local-dir NAME\nskipdec inspect NAME\n"
            'skipdec generate NAME -p "…"\n```',
        ),
        tags=[manifest.target],
    )


def describe_drafts(behind: int | None, head_tokens: int | None) -> str:
    """Return what a bundle has for drafts in one line; nothing if it has nothing.

    >>> describe_drafts(1, 8192)
    'a layer of their own behind layer 0, a head of the first 8192 tokens'
    """
    layer = "" if behind is None else f"a layer of their own behind layer {behind - 1}"
    head = "" if head_tokens is None else f"a head of the first {head_tokens} tokens"
    return ", ".join(part for part in (layer, head) if part)


def _drafts(manifest: Manifest) -> str:
    layer, head = manifest.draft_layer, manifest.draft_head
    behind = None if layer is None else layer.behind
    return describe_drafts(behind, None if head is None else head.tokens)


def _quantization(manifest: Manifest) -> str:
    precision = manifest.precision
    if precision.quantize == precision.head_quantize == "none":
        return "unquantised"
    return f"{precision.quantize} (head {precision.head_quantize})"


def _cache(manifest: Manifest) -> str:
    kv_dtype = manifest.precision.kv_dtype
    return "" if kv_dtype is None else f", KV cache {kv_dtype}"


def _kernels(manifest: Manifest) -> str:
    return "" if manifest.kernels is None else f", with {manifest.kernels}'s kernels for CPUs"


def _speed(manifest: Manifest, schedule: ExitSchedule) -> str:
    """Return depth and bytes read at full depth and with the bundle's own schedule."""
    cost = CostModel(manifest)
    longest = manifest.model.max_seq_len
    tokens = max(2, min(_NUM_TOKENS, longest // 3))
    prompt = max(1, min(_PROMPT_LENGTH, longest - tokens))
    full = ExitSchedule.full(manifest.model.num_layers)
    rows = (
        (
            code(format_schedule(each)),
            f"{each.average_budget(tokens - 1):.2f}",
            f"{cost.bytes_ratio(each, [prompt], tokens):.2f}×",
        )
        for each in dict.fromkeys((full, schedule))
    )
    return (
        f"One row, {prompt} + {tokens} tokens. Fewer bytes: bytes read by the steps after the "
        "prompt at full depth, divided by those at the schedule. The speed-up of whole calls is "
        "lower; `skipdec bench` measures it. The loss of quality depends on how the weights were "
        "tuned; `skipdec evaluate` measures it on your data.\n\n"
        + markdown_table(("schedule", "layers per token", "fewer bytes"), rows)
    )
