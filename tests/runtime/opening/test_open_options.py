"""Options that open a bundle are the same in Python, in workers, in Triton and in skipdec.h."""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from skipdec import AsyncEngine, ExitSchedule, Generator, OpenOptions, ProcessEngine
from skipdec.engines.errors import UsageError
from skipdec.engines.host.options import from_options
from skipdec.runtime.commands.options import EngineChoice
from skipdec.runtime.opening import OpenKeywords
from skipdec.runtime.serving.process.settings import WorkerSettings
from skipdec.runtime.serving.triton.settings import ModelSettings

PYTHON_ONLY = {"device", "kv_shares"}  # libskipdec runs on CPUs, in one process
C_ONLY = {"size", "onnxruntime"}  # Python imports the onnxruntime of its environment


def header_defaults() -> dict[str, Any]:
    """Return the fields of ``skipdec_options`` and the defaults that its comments state."""
    header = Path(__file__).parents[3] / "runtime/native/include/skipdec/skipdec.h"
    (body,) = re.findall(r"typedef struct skipdec_options \{(.*?)\} ", header.read_text(), re.S)
    fields = re.findall(r"\b(\w+);\s*(?:/\*(.*?)\*/)?", body, re.S)
    return {name: re.findall(r"default (\d+|SKIPDEC_\w+)", note) for name, note in fields}


def test_c_options_have_pythons_names_and_defaults() -> None:
    fields, stated = OpenOptions.model_fields, header_defaults()
    assert fields.keys() - PYTHON_ONLY == stated.keys() - C_ONLY
    python = OpenOptions().updated(max_prefill_tokens=2048)  # the value of None
    for name, default in stated.items():
        if default:
            value = default[0].rpartition("_")[2].lower()
            assert value == str(getattr(python, name)), name


def test_keywords_are_the_fields() -> None:
    assert OpenKeywords.__annotations__.keys() == OpenOptions.model_fields.keys()


@pytest.mark.parametrize("function", [Generator.open, AsyncEngine.open, ProcessEngine.open])
def test_every_way_to_open_takes_options_and_keywords(function: Any) -> None:  # noqa: ANN401
    parameters = inspect.signature(inspect.unwrap(function)).parameters
    assert "options" in parameters
    assert "OpenKeywords" in parameters["changes"].annotation


def test_settings_of_workers_and_triton_are_open_options() -> None:
    for settings in (WorkerSettings, ModelSettings):
        assert issubclass(settings, OpenOptions)


def test_keywords_change_options_and_unknown_ones_are_refused() -> None:
    options = OpenOptions.of(OpenOptions(max_batch_size=2, verify="graphs"), max_batch_size=3)
    assert (options.max_batch_size, options.verify) == (3, "graphs")
    with pytest.raises(UsageError, match=r"options \| is {'threads': 1}; allowed: OpenOptions"):
        OpenOptions.of({"threads": 1})  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="raw_prompt is unknown; did you mean"):
        OpenOptions.of(None, raw_prompt=True)  # type: ignore[call-arg]


def test_a_schedule_crosses_processes_as_json() -> None:
    made = OpenOptions(schedule=ExitSchedule.full(6))
    assert OpenOptions.from_json(made.to_json()) == made


def test_a_schedules_file_is_read_once(tmp_path: Path) -> None:
    path = tmp_path / "schedule.json"
    path.write_text(json.dumps(ExitSchedule.full(6).to_document()))
    options = WorkerSettings(path=tmp_path, schedule=f"{path}")
    triton = ModelSettings(schedule=f"{path}").to_parameters()
    path.unlink()
    assert options.schedule == ExitSchedule.full(6)
    assert WorkerSettings.from_json(options.to_json()) == options
    assert OpenOptions(schedule=triton["schedule"]).schedule == options.schedule
    with pytest.raises(UsageError, match=r"schedule .*schedule\.json can't be read"):
        OpenOptions(schedule=f"{path}")


def test_a_command_can_offer_a_subset_of_the_options() -> None:
    @from_options
    def command(engines: EngineChoice) -> None: ...

    shown = set(inspect.signature(command).parameters) - {"context"}
    assert shown == {"device", "threads", "option_file"}
    assert get_type_hints(OpenOptions)["max_batch_size"] is int
