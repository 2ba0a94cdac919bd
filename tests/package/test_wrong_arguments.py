"""A function that takes a configuration refuses anything else, such as a model's name."""

from __future__ import annotations

import pytest

import skipdec
from skipdec import UsageError

CONFIGS = {
    "build_bundle": "BuildConfig",
    "calibrate": "CalibrationConfig",
    "compare": "CompareConfig",
    "evaluate": "EvaluationConfig",
    "export": "ExportConfig",
    "fit": "FitConfig",
    "round_weights": "RoundingConfig",
    "run_benchmark": "BenchConfig",
    "tune": "TuneConfig",
    "write_ngrams": "NGramsConfig",
    "write_triton_repository": "TritonRepositoryConfig",
}


@pytest.mark.parametrize("function", CONFIGS)
def test_functions_name_the_configuration_that_they_take(function: str) -> None:
    before = (None,) if function == "run_benchmark" else ()  # the generator
    with pytest.raises(UsageError) as caught:
        getattr(skipdec, function)(*before, "opt-125m")
    assert str(caught.value) == f"config | is 'opt-125m'; allowed: {CONFIGS[function]}(…)"


def test_verify_bundle_names_the_source_that_it_takes() -> None:
    with pytest.raises(UsageError, match=r"source \| is 'opt-125m'; allowed: CheckpointSource"):
        skipdec.verify_bundle("bundle", "opt-125m")  # type: ignore[arg-type]
