"""Write the model card of a tuned checkpoint: origin, training and losses."""

from __future__ import annotations

from ...engines.host.console import markdown_table
from ...exporter.checkpoint.card import code, facts_table, model_card, structure
from .plan import TuningPlan
from .report import TuningReport, ValidationReport


def tuned_card(plan: TuningPlan, report: TuningReport) -> bytes:
    """Return README.md of the checkpoint of ``plan``, with the losses of ``report``."""
    data = report.data
    facts = {
        "model": f"{structure(plan.model)}; {report.parameters:,} parameters",
        "tuned from": code(plan.model.name) if plan.config.model else "random weights",
        "exit schedule": code(report.schedule_text),
        "tuned at": ", ".join(
            f"{code(entry.text)} ({entry.steps} steps)" for entry in report.schedules
        ),
        "prompt template": code(plan.data.template.text),
        "data": f"{data.examples:,} examples, median {data.median_prompt} + "
        f"{data.median_completion} tokens",
        "training": f"{report.steps:,} steps, {report.epochs:g} epochs, seed {plan.config.seed}",
        "made with": ", ".join(f"{name} {number}" for name, number in report.versions.items()),
    }
    sections = [
        "A checkpoint for transformers whose layers were tuned to be skipped: exported by skipdec, "
        "each generated token runs only those that its exit schedule names (SkipDecode, "
        "arXiv:2307.02628). At full depth it runs in transformers like any other.",
        facts_table(facts.items()),
    ]
    if report.validation is not None:
        sections.append(_losses(report.validation))
    sections.append("```sh\nskipdec export OWNER/NAME --quantize int8\n```")
    return model_card(plan.model, f"{plan.config.output.name}, tuned to skip layers", sections)


def _losses(losses: ValidationReport) -> str:
    rows = (
        (depth, f"{before:.3f}", f"{after:.3f}")
        for depth, before, after in (
            ("at the schedule", losses.start_at_schedule, losses.tuned_at_schedule),
            ("at full depth", losses.start_at_full, losses.tuned_at_full),
        )
    )
    table = markdown_table(("", "before", "after"), rows)
    return f"Loss of {losses.examples:,} held-out completions, nats per token:\n\n{table}"
