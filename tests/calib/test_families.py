"""Evaluate and fit a bundle of the LLaMA family, as one of OPT."""

from __future__ import annotations

from pathlib import Path

from evaluations import SKIPPING

from skipdec.calib.data.data import DataConfig
from skipdec.calib.evaluation.config import BundleChoice, EvaluationConfig
from skipdec.calib.evaluation.evaluation import evaluate
from skipdec.calib.fitting.fitting import fit
from skipdec.calib.fitting.inputs import FitConfig, TargetSpeedup
from skipdec.calib.fitting.search import SearchConfig
from skipdec.calib.fitting.space import SpaceConfig
from skipdec.runtime.generator import Generator


def test_llama_is_evaluated_at_the_depth_of_its_schedule(llama: Path, data: Path) -> None:
    bundle = BundleChoice("llama", llama)
    config = EvaluationConfig(
        bundles=(bundle,),
        data=DataConfig(path=data),
        schedules=(SKIPPING,),
        max_tokens=6,
        seconds=0,
    )
    rows = evaluate(config, Generator.open).rows
    full, skipping = (row.figures["realised_depth"].estimate.value for row in rows)
    assert full == 6
    assert 2 <= skipping <= 4


def test_fit_chooses_a_schedule_of_llama_that_reads_fewer_bytes(llama: Path, data: Path) -> None:
    found = fit(
        FitConfig(
            bundle=llama,
            data=DataConfig(path=data),
            goal=TargetSpeedup(1.4),
            space=SpaceConfig(decays=("linear",), placements=("top",), warmups=(1,)),
            search=SearchConfig(budget=15),
            speedup_of="steps",
            seconds=0,
        ),
        Generator.open,
    )
    fast = [one for one in (*found.front, *found.others) if one.predicted.steps >= 1.4]
    assert found.chosen.predicted.steps >= 1.4
    assert found.chosen.loss == min(one.loss for one in fast)
