"""Make plans of tiny models and product inputs for tests of calibration.

The inputs come from Hugging Face's model, one text at a time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from reference import reference_logits
from transformers import PreTrainedModel

from skipdec.calib.calibration.config import CalibrationConfig
from skipdec.calib.calibration.plan import CalibrationPlan
from skipdec.calib.data.tokenised import TokenisedExample
from skipdec.calib.layerwise.config import LayerwiseConfig
from skipdec.calib.layerwise.plan import Plan
from skipdec.exporter.checkpoint.checkpoint import open_checkpoint
from skipdec.runtime.schedule import ExitSchedule
from skipdec.runtime.schedule.text import parse_schedule

# numbers of tokens of prompt and completion
LENGTHS = ((6, 12), (1, 9), (17, 4), (4, 1))
SCHEDULES = (
    "full",
    "linear:max=4,min=2,warmup=1,horizon=6",
    "linear:max=4,min=1,warmup=0,horizon=7,placement=bottom",
)
_SOURCES = {
    "self_attn.qkv_proj.weight": "self_attn.q_proj",
    "self_attn.out_proj.weight": "self_attn.out_proj",
    "fc1.weight": "fc1",
    "fc2.weight": "fc2",
}
_ROTARY_SOURCES = {
    "self_attn.qkv_proj.weight": "self_attn.q_proj",
    "self_attn.o_proj.weight": "self_attn.o_proj",
    "mlp.gate_up_proj.weight": "mlp.gate_proj",
    "mlp.down_proj.weight": "mlp.down_proj",
}


def random_examples(seed: int) -> tuple[TokenisedExample, ...]:
    """Return ragged texts of random tokens."""
    draw = np.random.default_rng(seed)
    return tuple(
        TokenisedExample(
            tuple(draw.integers(4, 131, prompt).tolist()),
            tuple(draw.integers(4, 131, completion).tolist()),
            "",
        )
        for prompt, completion in LENGTHS
    )


def plan_of(checkpoint: Path, schedule: str = "full", **options: Any) -> CalibrationPlan:  # noqa: ANN401
    """Return a calibration's plan, as ``plan_on_random_examples``."""
    values = {
        "percentile": 100,
        "num_examples": 4,
        "num_held_out": 4,
        "batch_tokens": 24,
    }
    config = CalibrationConfig(
        model=str(checkpoint),
        data={"path": Path("rows.jsonl")},
        output=Path("ranges.json"),
        **{**values, **options},
    )
    return plan_on_random_examples(CalibrationPlan, config, schedule)


def plan_on_random_examples(kind: type[Plan], config: LayerwiseConfig, schedule: str) -> Plan:
    """Return a plan of ``random_examples``: those of seed 2 are observed, those of 3 held out."""
    opened = open_checkpoint(config.source)
    return kind(
        config=config,
        checkpoint=opened,
        schedule=parse_schedule(schedule, num_layers=opened.model.num_layers),
        observed=random_examples(2),
        held_out=random_examples(3),
        warnings=(),
    )


def literal_inputs(
    model: PreTrainedModel, examples: Sequence[TokenisedExample], schedule: ExitSchedule
) -> dict[tuple[str, str], torch.Tensor]:
    """Return the input rows [n, K] of each product, by engine and weight, without packing or
    batches.
    """
    seen: dict[tuple[str, str], list[torch.Tensor]] = defaultdict(list)
    is_opt = model.config.model_type == "opt"
    layers = model.model.decoder.layers if is_opt else model.model.layers
    products = {("head", "lm_head.weight"): model.lm_head} | {
        (f"layer_{index:03d}", weight): layer.get_submodule(path)
        for index, layer in enumerate(layers)
        for weight, path in (_SOURCES if is_opt else _ROTARY_SOURCES).items()
    }
    handles = [
        module.register_forward_pre_hook(
            lambda _, inputs, key=key: seen[key].append(inputs[0].flatten(0, -2))
        )
        for key, module in products.items()
    ]
    for example in examples:
        literal_logits(model, example, schedule)
    for handle in handles:
        handle.remove()
    return {key: torch.cat(rows) for key, rows in seen.items()}


def literal_logits(
    model: PreTrainedModel, example: TokenisedExample, schedule: ExitSchedule
) -> torch.Tensor:
    """Return logits [G, V] that predict each token of the completion."""
    return reference_logits(
        model,
        example.prompt_token_ids,
        example.completion_token_ids[:-1],
        lambda index: schedule.plan(index).layers,
    )


def literal_loss(
    model: PreTrainedModel, examples: Sequence[TokenisedExample], schedule: ExitSchedule
) -> float:
    """Return the mean cross-entropy of all completions' tokens."""
    logits = torch.cat([literal_logits(model, example, schedule) for example in examples])
    targets = torch.tensor([t for example in examples for t in example.completion_token_ids])
    return float(torch.nn.functional.cross_entropy(logits, targets))
