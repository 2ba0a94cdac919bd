"""Steps and prompts of opt-1.3b, relative to their bytes and to ONNX Runtime's operators."""

from __future__ import annotations

import json
from functools import partial

from benchmarks.cpu.bundles import Bundles
from benchmarks.cpu.figure import Figure, Part
from benchmarks.cpu.paired import Paired, Variant, paired_calls, paired_steps
from benchmarks.machine import Machine
from benchmarks.process import run_measured, skipdec_command
from benchmarks.stitching import StitchingBench
from skipdec.engines.bundle import EngineBundle

MODEL = "opt-1.3b"
SIX_LAYERS = "constant:max=6"
_ROUNDS = 48
_PROMPT_ROUNDS = 5
_LONG_CONTEXT = 1024


def one_row(bundles: Bundles) -> Part:
    """Measure batch 1: fractions of the byte floor, and speed-up over ONNX Runtime's operators."""
    kinds = ("int8", "int8-onnxruntime", "int4", "int4-onnxruntime")
    variants = {kind: bundles.variant(MODEL, kind) for kind in kinds}
    paired = paired_steps(variants, _ROUNDS, bundles.threads)
    return Part(
        [
            *_floor_figures(paired, variants, {"int8": 0.95, "int4": 0.90}),
            _times_as_fast(paired, "int8", None, "batch 1"),
            _times_as_fast(paired, "int4", 1.5, "batch 1"),
        ],
        paired.timings(),
    )


def eight_rows(bundles: Bundles) -> Part:
    """Measure batch 8 against batch 1 and against ONNX Runtime's operators."""
    kinds = ("int8", "int8-onnxruntime", "int4", "int4-onnxruntime")
    variants = {kind: bundles.variant(MODEL, kind, rows=8) for kind in kinds}
    variants["int8-kv-int8"] = bundles.variant(MODEL, "int8-kv-int8", rows=8)
    variants["int8, 1 row"] = bundles.variant(MODEL, "int8")
    paired = paired_steps(variants, _ROUNDS)
    growth, words = paired.ratio("int8", "int8, 1 row"), paired.words("int8", "int8, 1 row")
    own_growth = paired.ratio("int8-kv-int8", "int8, 1 row")
    return Part(
        [
            Figure.at_most("int8, batch 8 ÷ batch 1", 1.35, growth, words),
            Figure.unaimed(
                "int8 with an int8 cache, batch 8 ÷ batch 1 with a float16 one",
                own_growth,
                paired.words("int8-kv-int8", "int8, 1 row"),
            ),
            _times_as_fast(paired, "int8", None, "batch 8"),
            _times_as_fast(paired, "int4", 1.7, "batch 8"),
        ],
        paired.timings(),
    )


def sixteen_rows(bundles: Bundles) -> Part:
    """Measure batch 16 against ONNX Runtime's operators."""
    kinds = ("int8", "int8-onnxruntime")
    paired = paired_steps(
        {kind: bundles.variant(MODEL, kind, rows=16) for kind in kinds}, _ROUNDS // 2
    )
    return Part([_times_as_fast(paired, "int8", 1.6, "batch 16")], paired.timings())


def prompt(bundles: Bundles) -> Part:
    """Measure a prompt of 512 tokens and its first token, against ONNX Runtime's operators."""
    kinds = ("int8", "int8-onnxruntime", "int4", "int4-onnxruntime")
    variants = {kind: bundles.variant(MODEL, kind) for kind in kinds}
    paired = paired_calls(
        {kind: partial(variant.first_token, 512) for kind, variant in variants.items()},
        _PROMPT_ROUNDS,
    )
    target = 3.0 if Machine.here().has_amx else 1.5
    return Part(
        [
            _times_as_fast(paired, "int8", target, "prompt of 512"),
            _times_as_fast(paired, "int4", 2.0, "prompt of 512"),
        ],
        paired.timings(),
    )


def long_context(bundles: Bundles) -> Part:
    """Measure 8 rows that attend to 1,024 positions, by type of the KV cache."""
    kinds = ("int8-onnxruntime", "int8-kv-float32", "int8", "int8-kv-int8")
    variants = {kind: bundles.variant(MODEL, kind, rows=8, context=_LONG_CONTEXT) for kind in kinds}
    paired = paired_steps(variants, _ROUNDS // 2)
    today = "int8-onnxruntime"
    figures = []
    for kind, cache, target in (
        ("int8-kv-float32", "float32", None),
        ("int8", "float16", 1.8),
        ("int8-kv-int8", "int8", None),
    ):
        what = f"int8, 8 rows at KV 1024, {cache} cache, against ONNX Runtime's operators (float32)"
        figures.append(_gain(paired, what, today, kind, target))
    return Part(figures, paired.timings())


def six_layers(bundles: Bundles) -> Part:
    """Measure 6 of 24 layers: the gain of a step relative to the ratio of bytes."""
    variants = {
        "24 layers": bundles.variant(MODEL, "int8"),
        "6 layers": bundles.variant(MODEL, "int8", schedule=SIX_LAYERS),
    }
    paired = paired_steps(variants, _ROUNDS)
    full, six = (sum(variant.step_bytes(_ROUNDS)) for variant in variants.values())
    gained, promised = paired.ratio("24 layers", "6 layers"), full / six
    what = "int8, batch 1: 6 of 24 layers, gain ÷ ratio of bytes"
    more = f"{gained:.2f}× of {promised:.2f}×"
    return Part([Figure.at_least(what, 0.97, gained / promised, more)], paired.timings())


def halves(bundles: Bundles) -> Part:
    """Measure 16-bit weights against float32 at batch 1."""
    kinds = ("float32", "float16", "bfloat16")
    paired = paired_steps({kind: bundles.variant(MODEL, kind) for kind in kinds}, _ROUNDS // 2)
    figures = [
        _gain(paired, f"{kind} against float32, batch 1", "float32", kind, target)
        for kind, target in (("float16", 1.8), ("bfloat16", None))
    ]
    return Part(figures, paired.timings())


def stitching(bundles: Bundles) -> Part:
    """Measure a step of all stitched layers against the same layers in one graph."""
    bundle = EngineBundle.open(bundles.path(MODEL, "int8"))
    cost = StitchingBench(bundle).measure()
    what = f"int8: {len(bundle.manifest.layers)} stitched engines ÷ one graph"
    paired = Paired({"stitched": cost.stitched, "one graph": cost.merged})
    words = paired.words("stitched", "one graph")
    return Part([Figure.at_most(what, 1.05, cost.ratio, words)], paired.timings())


def schedules(bundles: Bundles) -> Part:
    """Run ``skipdec bench`` with the presets, batch 1 and 8, int8 and int4."""
    found = {}
    for kind in ("int8", "int4"):
        options = [f"--schedule={text}" for text in ("full", "2x", "4x", SIX_LAYERS)]
        options += [f"--threads={bundles.threads}"]
        options += ["--batch-sizes=1,8", "--json"]
        command = skipdec_command("bench", str(bundles.path(MODEL, kind)), *options)
        found[f"{MODEL} {kind}"] = json.loads(run_measured(command).stdout)
    return Part([], bench=found)


def _floor_figures(
    paired: Paired, variants: dict[str, Variant], targets: dict[str, float]
) -> list[Figure]:
    figures = []
    for kind, target in targets.items():
        step_bytes = variants[kind].step_bytes(_ROUNDS)
        fraction = paired.floor_fraction(kind, step_bytes)
        best = paired.best_floor_fraction(kind, step_bytes)
        beaten = ", so the probe was too slow and proves nothing" if best > 1 else ""
        figure = Figure(
            f"{kind}, batch 1: fraction of the byte floor, head included",
            f"≥ {target:g}",
            f"{fraction:.2f} (fastest step, best bandwidth {best:.2f}{beaten})",
            fraction >= target and best <= 1,
        )
        figures.append(figure)
    return figures


def _times_as_fast(paired: Paired, kind: str, target: float | None, when: str) -> Figure:
    what = f"{kind}, {when}, against ONNX Runtime's operators"
    return _gain(paired, what, f"{kind}-onnxruntime", kind, target)


def _gain(paired: Paired, what: str, slower: str, faster: str, target: float | None) -> Figure:
    ratio, words = paired.ratio(slower, faster), paired.words(slower, faster)
    if target is None:
        return Figure.unaimed(what, ratio, words)
    return Figure.at_least(what, target, ratio, words)
