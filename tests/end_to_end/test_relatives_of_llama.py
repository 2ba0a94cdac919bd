"""Both runtimes write what transformers' layers of LLaMA's relatives write."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from reference import Plan, full_plan, linear_plan, reference_logits
from runtimes import TimedRequest, both
from tiny_models import LLAMA_BASE, LLAMA_RELATIVES, random_model
from transformers import PreTrainedModel

from skipdec import SamplingParams
from skipdec.engines.kernels.library import find_library
from skipdec.exporter.config import ExportConfig
from skipdec.exporter.pipeline.exporting import export

pytestmark = pytest.mark.skipif(find_library() is None, reason="the kernels were not compiled")

LAYERS = 4
PROMPTS = [np.random.default_rng(n).integers(4, 131, n).tolist() for n in (6, 1)]
GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
PLANS: dict[str, Plan] = {
    "full": full_plan(LAYERS),
    "linear:max=3,min=1,warmup=0,horizon=4,placement=bottom": linear_plan(
        LAYERS, 3, 1, 0, 4, "bottom"
    ),
}


@pytest.fixture(scope="module", params=LLAMA_RELATIVES)
def relative(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[PreTrainedModel, Path]:
    changes = {"num_hidden_layers": LAYERS, "model_type": request.param}
    model = random_model({**LLAMA_BASE, **changes, **LLAMA_RELATIVES[request.param]})
    directory = tmp_path_factory.mktemp("relative") / str(request.param)
    model.save_pretrained(directory)
    return model, directory


@pytest.mark.parametrize(
    ("precision", "tolerance"), [({"dtype": "float16"}, 0.01), ({"quantize": "int8"}, 0.2)]
)
def test_both_runtimes_write_the_greedy_tokens_of_the_reference(
    relative: tuple[PreTrainedModel, Path],
    precision: dict[str, str],
    tolerance: float,
    tmp_path: Path,
) -> None:
    model, checkpoint = relative
    bundle = tmp_path / "bundle"
    export(
        ExportConfig(
            model=str(checkpoint), output=bundle, kernels="skipdec", verify=False, **precision
        )
    )
    requests = [TimedRequest(prompt, GREEDY, schedule) for schedule in PLANS for prompt in PROMPTS]
    with both(bundle) as (python, native):
        made = python.run(requests)
        assert native.run(requests) == made
    for one, (row,) in zip(requests, made, strict=True):
        assert isinstance(one.prompt, list)
        plan = PLANS[one.schedule]
        logits = reference_logits(model, one.prompt, row.token_ids[:-1], plan)
        expected = logits.log_softmax(-1)  # [G, V]
        chosen = expected[range(len(row.token_ids)), list(row.token_ids)]
        assert (expected.max(-1).values - chosen).max() < tolerance
