from __future__ import annotations

import json
import subprocess
import sys
from functools import partial
from pathlib import Path

import command_line
import pytest
from fixture_types import Checkpoints

from skipdec.engines.host.events import Events
from skipdec.exporter.config import ExportConfig
from skipdec.exporter.pipeline import exporting as pipeline


@pytest.fixture
def model(checkpoint: Checkpoints) -> str:
    return str(checkpoint("pre_norm"))


run = partial(command_line.run, "export")


def test_export_prints_a_line_per_stage_and_engine_and_a_summary(
    model: str, tmp_path: Path
) -> None:
    result = run(model, "-o", str(tmp_path / "bundle"), "--no-verify")
    assert result.exit_code == 0, result.output
    for line in ("checking", "tracing", "layer_005", "head", "building", "publishing"):
        assert line in result.stderr
    for fact in ("6 layers", "peak memory", "none (--no-verify)", "schedule"):
        assert fact in result.stdout


def test_json_report_is_all_of_stdout(model: str, tmp_path: Path) -> None:
    result = run(model, "-o", str(tmp_path / "bundle"), "--no-verify", "--json")
    report = json.loads(result.stdout)
    assert (report["output"], len(report["engines"])) == (str(tmp_path / "bundle"), 9)


def test_quiet_leaves_only_warnings_on_stderr(model: str, tmp_path: Path) -> None:
    result = run(model, "-o", str(tmp_path / "bundle"), "--no-verify", "-q")
    assert result.stderr == "warning: no tokenizer files: the bundle runs on token ids\n"


def test_dry_run_writes_nothing_and_imports_no_torch(tmp_path: Path) -> None:
    code = (
        "import sys; sys.argv = ['skipdec', 'opt-30b', '--load-format', 'dummy', '--quantize',"
        " 'int4', '--kernels', 'onnxruntime', '--dry-run', '--json']\n"
        "from skipdec.cli import export_main\n"
        "try: export_main()\n"
        "except SystemExit as end: assert not end.code\n"
        "assert 'torch' not in sys.modules and 'onnx' not in sys.modules"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    plan = json.loads(done.stdout)
    assert plan["kv_bytes_per_token"] == 2 * 48 * 7168 * 4
    assert len(plan["engines"]) == 51
    assert list(tmp_path.iterdir()) == []


def test_every_flag_and_the_file_reach_the_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[ExportConfig] = []

    def record(config: ExportConfig, events: Events) -> None:
        seen.append(config)
        raise KeyboardInterrupt

    monkeypatch.setattr(pipeline, "export", record)
    fields = {"revision": "v1", "head_quantize": "int8", "accuracy_level": 0, "atol": 0.5}
    fields |= {"verify_memory": "2GB", "resume": False, "quantize": "int8", "jobs": 4}
    flags = "--load-format bin --dtype float16 --quantize int4 --block-size 64 --max-seq-len 99"
    switches = "--schedule 2x --keep-canonical --force --no-verify -o out"
    result = run("me/opt", *command_line.config(**fields), *flags.split(), *switches.split())
    assert result.exit_code == 130
    assert seen == [
        ExportConfig(
            model="me/opt",
            output=Path("out"),
            load_format="bin",
            revision="v1",
            dtype="float16",
            quantize="int4",
            head_quantize="int8",
            block_size=64,
            accuracy_level=0,
            max_seq_len=99,
            schedule="2x",
            keep_canonical=True,
            force=True,
            resume=False,
            verify=False,
            verify_memory=2 * 10**9,
            atol=0.5,
            jobs=4,
        )
    ]


def test_an_interruption_says_how_to_resume(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(config: ExportConfig, events: Events) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(pipeline, "export", interrupt)
    result = run(model)
    assert result.exit_code == 130
    assert "run the same command again" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["-v", "-q"], "contradicts"),
        (["--block-size", "64"], "nothing is quantised in blocks"),
        (command_line.config(accuracy_level=3), "yaml) is 3; allowed: 0 or 4"),
        (command_line.config(verify_memory="much"), "not a size"),
        (["--target", "npu"], "unknown; allowed: onnxruntime, tensorrt, tensorrt-rtx"),
        (["--gpu-arch", "8.9"], "leave it out for target onnxruntime"),
        (["--schedule", "7x"], "7x"),
        (["--max-seq-len", "65"], "max_seq_len is 65"),
        (["--quantize", "int3"], "int3"),
    ],
)
def test_bad_arguments_are_usage_errors(
    model: str, tmp_path: Path, arguments: list[str], text: str
) -> None:
    result = run(model, "-o", str(tmp_path / "bundle"), *arguments)
    assert result.exit_code == 2
    assert text in result.output + result.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.usefixtures("verified_here")
def test_export_verifies_by_default(model: str, tmp_path: Path) -> None:
    result = run(model, "-o", str(tmp_path / "bundle"), "--quantize", "int8", "-v")
    assert result.exit_code == 0, result.output
    assert "passed" in result.stdout
    assert "verifying" in result.stderr
