"""Description of a bundle as JSON objects: engines, tensors, memory, schedules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, get_args

from ...engines.bundle import EngineBundle, Verify
from ...engines.errors import UsageError, shown
from ...engines.kernels.library import kernels_in_use
from ...engines.manifest import EngineSpec, Manifest, TensorRole
from ..drafting.resolver import DraftResolver
from ..kv.buffers import KVLayout, pair_bytes
from ..kv.limits import Limits
from ..kv.plans import SlotMemory
from ..schedule import ExitSchedule
from ..schedule.bundle import bundle_schedule
from ..schedule.presets import fitting_presets
from ..schedule.request_schedules import default_horizon
from ..schedule.text import format_schedule, parse_schedule
from .config import Section, Workload
from .cost import CostModel

PRESETS = ("2x", "3x", "4x", "5x")


def inspect_bundle(
    path: str | Path,
    *,
    schedules: Sequence[str] = (),
    workload: Workload | None = None,
    sections: Sequence[Section] = get_args(Section),
    verify: Verify = "graphs",
) -> dict[str, Any]:
    """Describe a bundle and the savings of its schedules, as one JSON object.

    ``schedules``, by default the common presets, come after full depth and the bundle's own.
    ``sections`` are any of engines, io, memory and schedule. ``verify="full"`` also hashes the
    weights. No engine is loaded. Raises BundleError, ScheduleError, and UsageError for an unknown
    section.
    """
    if unknown := [name for name in sections if name not in get_args(Section)]:
        allowed = ", ".join(get_args(Section))
        raise UsageError("sections", f"{shown(unknown[0])} is unknown; allowed: {allowed}")
    workload = workload or Workload()
    bundle = EngineBundle.open(path, verify=verify)
    chosen = schedules_of_interest(bundle, schedules, workload.num_tokens)
    describe: dict[Section, Callable[[], Any]] = {
        "engines": lambda: describe_engines(bundle),
        "io": lambda: describe_tensors(bundle),
        "memory": lambda: describe_memory(bundle, chosen, workload),
        "schedule": lambda: describe_schedules(bundle, chosen, workload),
    }
    return describe_bundle(bundle) | {name: describe[name]() for name in dict.fromkeys(sections)}


def describe_bundle(bundle: EngineBundle) -> dict[str, Any]:
    """Return model, precision, target, the kernels in use and tool versions."""
    manifest = bundle.manifest
    return {
        "path": str(bundle.path),
        "target": manifest.target,
        "kernels": kernels_in_use(manifest),
        "model": {name: value for name, value in manifest.model if name != "sampling_defaults"},
        "precision": manifest.precision.model_dump(mode="json", exclude_none=True),
        "sampling_defaults": manifest.model.sampling_defaults.given,
        "prompt_template": manifest.prompt_template,
        "chat_template": None
        if manifest.chat_template is None
        else manifest.chat_template.model_dump(mode="json"),
        "bundle_schedule": format_schedule(bundle_schedule(bundle)),
        "drafts": describe_drafts(manifest),
        "draft_engines": describe_draft_engines(manifest),
        "bundle_draft": manifest.draft,
        "ngrams": manifest.ngrams,
        "tool_versions": manifest.tool_versions,
        "source": manifest.source,
        "digest": manifest.digest,
    }


def describe_drafts(manifest: Manifest) -> dict[str, Any]:
    """Return whether drafts are guaranteed to change no text of the bundle, and if not, why."""
    try:
        DraftResolver(manifest).resolve("own")
    except UsageError as error:
        return {"exact": False, "problem": "; ".join(error.problems)}
    return {"exact": True, "problem": None}


def describe_draft_engines(manifest: Manifest) -> dict[str, Any] | None:
    """Describe the engines that only drafts run; None if there are none."""
    trained, head = manifest.trained_draft, manifest.draft_head
    if trained is None and head is None:
        return None
    return {
        "reads": None if trained is None else list(trained.reads),
        "tokens": None if trained is None else len(trained.token_ids),
        "step_bytes": None
        if trained is None
        else sum(engine.step_bytes for engine in trained.engines),
        "head_tokens": None if head is None else head.tokens,
        "vocab_size": manifest.model.vocab_size,
    }


def describe_engines(bundle: EngineBundle) -> list[dict[str, Any]]:
    """Return name, kind, file sizes and bytes read per token of each engine, in running order.

    Engines of drafts come last. The weights of the narrow head count as those of the head.
    """
    manifest = bundle.manifest
    sizes = {record.path: record.size for record in manifest.files}
    shared = manifest.head.weights
    return [
        {
            "name": engine.name,
            "kind": engine.kind.value,
            "graph": engine.graph,
            "graph_bytes": sizes[engine.graph],
            "weights": list(engine.weights),
            "weights_bytes": sum(
                sizes[path]
                for path in engine.weights
                if engine is manifest.head or path not in shared
            ),
            "step_bytes": engine.step_bytes,
        }
        for engine in (*manifest.engines, *manifest.draft_engines)
    ]


def describe_tensors(bundle: EngineBundle) -> list[dict[str, Any]]:
    """Return inputs and outputs by role; engines with equal tensors share an entry."""
    groups: dict[tuple[Any, ...], list[EngineSpec]] = {}
    for engine in (*bundle.manifest.engines, *bundle.manifest.draft_engines):
        groups.setdefault((engine.kind, engine.inputs, engine.outputs), []).append(engine)
    return [
        {
            "engines": [engine.name for engine in engines],
            "inputs": [tensor.model_dump(mode="json") for tensor in engines[0].inputs],
            "outputs": [tensor.model_dump(mode="json") for tensor in engines[0].outputs],
        }
        for engines in groups.values()
    ]


def describe_memory(
    bundle: EngineBundle, schedules: Sequence[ExitSchedule], workload: Workload
) -> dict[str, Any]:
    """Return the bytes of weights on disk and of the KV caches of ``workload`` per schedule."""
    sizes = {record.path: record.size for record in bundle.manifest.files}
    engines = (*bundle.manifest.engines, *bundle.manifest.draft_engines)
    weights = {path for engine in engines for path in engine.weights}
    layout = KVLayout.of(bundle.manifest.layers[0].tensor(TensorRole.PAST_KEY))
    cost = CostModel(bundle.manifest)
    return {
        "weights_bytes": sum(sizes[path] for path in weights),
        "kv_dtype": layout.dtype,
        "kv_bytes_per_token_and_layer": cost.kv_bytes_per_position,
        "kv_bytes_per_token": cost.kv_bytes_per_position * bundle.manifest.model.num_layers,
        "batch_size": workload.batch_size,
        "prompt_length": workload.prompt_length,
        "num_tokens": workload.num_tokens,
        "kv_cache": [
            {
                "schedule": format_schedule(schedule),
                "bytes": _cache_bytes(layout, schedule, workload),
            }
            for schedule in schedules
        ],
    }


def _cache_bytes(layout: KVLayout, schedule: ExitSchedule, workload: Workload) -> int:
    """Return the bytes that the caches of a whole batch take while its prompts run."""
    rows, positions = workload.batch_size, workload.prompt_length + workload.num_tokens
    limits = Limits(rows, positions, kv_bytes=0)
    memory = SlotMemory(limits, layout, schedule.num_layers, exact=True)
    prompt = (0,) * workload.prompt_length
    row = memory.prompt_row(prompt, schedule, workload.num_tokens, range(1))
    slots = sum(pair_bytes(layout, (rows, capacity)) for capacity in row.capacities)
    return slots + memory.scratch_plan([row] * rows).nbytes


def describe_schedules(
    bundle: EngineBundle, schedules: Sequence[ExitSchedule], workload: Workload
) -> list[dict[str, Any]]:
    """Return mean depth and bytes per step of each schedule, and full depth's bytes ÷ its bytes.

    ``workload.slots`` adds `CostModel.mixing_loss`.
    """
    cost = CostModel(bundle.manifest)
    lengths, num_tokens = workload.prompt_lengths, workload.num_tokens
    steps = num_tokens - 1
    rows = []
    for schedule in schedules:
        decode = cost.decode(schedule, lengths, num_tokens)
        row = {
            "schedule": format_schedule(schedule),
            "realised_depth": schedule.average_budget(steps),
            "weight_bytes_per_step": decode.weights // steps,
            "kv_bytes_per_step": decode.kv // steps,
            "bytes_ratio": cost.bytes_ratio(schedule, lengths, num_tokens),
        }
        if (slots := workload.slots) is not None:
            row["mixing_loss"] = cost.mixing_loss(
                schedule, workload.prompt_length, num_tokens, slots
            )
        rows.append(row)
    return rows


def schedules_of_interest(
    bundle: EngineBundle, texts: Sequence[str], num_tokens: int
) -> list[ExitSchedule]:
    """Return full depth, the bundle's own schedule, then ``texts`` or the common presets."""
    num_layers = bundle.manifest.model.num_layers
    own = bundle_schedule(bundle)
    horizon = default_horizon(own, num_tokens)
    named = [
        parse_schedule(text, num_layers=num_layers, horizon=horizon)
        for text in texts or [preset for preset in PRESETS if preset in fitting_presets(num_layers)]
    ]
    return list(dict.fromkeys([ExitSchedule.full(num_layers), own, *named]))
