"""Configurations and results can be pickled, for multiprocessing or Ray."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path

import pytest

import skipdec
from skipdec.engines.checking import ValidatedConfig

DATA = skipdec.DataConfig(path=Path("rows.jsonl"))
TUNING = skipdec.TuneConfig(model="opt-125m", data=DATA, schedule="2x", output=Path("tuned"))
EXAMPLES: dict[str, Callable[[], object]] = {
    "BenchConfig": skipdec.BenchConfig,
    "BuildConfig": lambda: skipdec.BuildConfig(target="tensorrt", bundle=Path("bundle")),
    "CalibrationConfig": lambda: skipdec.CalibrationConfig(
        model="opt-125m", data=DATA, output=Path("ranges.json")
    ),
    "CheckpointSource": lambda: skipdec.CheckpointSource(model="opt-125m"),
    "CompareConfig": lambda: skipdec.CompareConfig(bundle=Path("bundle")),
    "DataConfig": lambda: DATA,
    "EvaluationConfig": lambda: skipdec.EvaluationConfig(
        bundles=(skipdec.BundleChoice("a", Path("bundle")),), data=DATA, schedules=("2x",)
    ),
    "ExportConfig": lambda: skipdec.ExportConfig(model="opt-125m", output=Path("bundle")),
    "FitConfig": lambda: skipdec.FitConfig(bundle=Path("bundle"), data=DATA, target_speedup=1.5),
    "MetricOptions": skipdec.MetricOptions,
    "NGramsConfig": lambda: skipdec.NGramsConfig(
        model="opt-125m", data=DATA, output=Path("ngrams.json")
    ),
    "OpenOptions": lambda: skipdec.OpenOptions(schedule="2x", kv_memory="2GiB"),
    "RestartPolicy": skipdec.RestartPolicy,
    "RoundingConfig": lambda: skipdec.RoundingConfig(
        model="opt-125m", data=DATA, output=Path("rounded")
    ),
    "SamplingParams": lambda: skipdec.SamplingParams(temperature=0.5, stop=["."], seed=3),
    "SearchConfig": skipdec.SearchConfig,
    "SpaceConfig": skipdec.SpaceConfig,
    "TensorRtConfig": skipdec.TensorRtConfig,
    "TritonRepositoryConfig": lambda: skipdec.TritonRepositoryConfig(
        bundles=(Path("bundle"),), output=Path("models")
    ),
    "TuneConfig": lambda: TUNING,
    "Workload": skipdec.Workload,
}


def test_every_public_configuration_is_among_the_examples() -> None:
    public = {name: getattr(skipdec, name) for name in skipdec._PUBLIC_NAMES}
    configurations = {
        name
        for name, value in public.items()
        if isinstance(value, type) and issubclass(value, ValidatedConfig)
    }
    assert configurations == EXAMPLES.keys()


@pytest.mark.parametrize("make", EXAMPLES.values(), ids=EXAMPLES)
@pytest.mark.parametrize("protocol", [0, pickle.HIGHEST_PROTOCOL])
def test_configurations_survive_pickling(make: Callable[[], object], protocol: int) -> None:
    config = make()
    assert pickle.loads(pickle.dumps(config, protocol)) == config


def test_errors_keep_their_message_after_pickling() -> None:
    with pytest.raises(skipdec.UsageError) as caught:
        skipdec.SamplingParams(temperature=-1, top_q=3)
    copied = pickle.loads(pickle.dumps(caught.value))
    assert (type(copied), str(copied)) == (type(caught.value), str(caught.value))
