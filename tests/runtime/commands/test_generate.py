"""``skipdec generate`` has the right stdout, stderr and exit codes."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import command_line
import pytest
from click.testing import Result
from text_bundles import STRUCTURE, export_text_bundle

IGNORE_EOS = command_line.config(params={"ignore_eos": True})
GREEDY = ("--temperature", "0", "--max-tokens", "6", *IGNORE_EOS)


@pytest.fixture(scope="module")
def bundle(checkpoint: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a tiny bundle with a byte tokenizer."""
    options = {"kernels": "onnxruntime", "schedule": None}
    return export_text_bundle(checkpoint(STRUCTURE), tmp_path_factory.mktemp("text"), **options)


def records(count: int, **fields: object) -> bytes:
    lines = [{"id": index, "prompt": "abc"[: index % 3 + 1], **fields} for index in range(count)]
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


def parsed(output: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in output.split("\n") if line]


def test_one_prompt_prints_its_text_alone(run: Callable[..., Result]) -> None:
    as_json = json.loads(run("-p", "ab", *GREEDY, "--json").stdout)
    result = run("-p", "ab", *GREEDY)
    assert result.exit_code == 0
    assert result.stdout == as_json["results"][0]["text"] + "\n"
    assert "schedule full" in result.stderr
    assert "6 tokens in" in result.stderr


def test_several_prompts_print_under_headings(run: Callable[..., Result]) -> None:
    result = run("-p", "ab", "-p", "c", *GREEDY)
    assert "# ab\n" in result.stdout
    assert "# c\n" in result.stdout


def test_completions_of_one_prompt_have_numbers_as_headings(
    run: Callable[..., Result],
) -> None:
    result = run("-p", "ab", "--n", "2", "--temperature", "1", "--seed", "1", "--max-tokens", "2")
    assert [line for line in result.stdout.split("\n") if line.startswith("# ")] == [
        "# [0]",
        "# [1]",
    ]


def test_a_prompt_may_be_an_option_an_argument_or_stdin(run: Callable[..., Result]) -> None:
    by_option = run("-p", "a\nb", *GREEDY)
    for arguments, stdin in (
        (("a\nb",), b""),
        (("-",), b"a\nb\n"),
        ((), b"a\nb"),
        (("-p", "-"), b"a\nb"),
    ):
        assert run(*arguments, *GREEDY, stdin=stdin).stdout == by_option.stdout
    assert "# c\n" in run("a", "-p", "c", *GREEDY).stdout
    refused = run(stdin=b"\xff")
    assert (refused.exit_code, "is not UTF-8 at byte 0" in refused.stderr) == (2, True)


def test_piped_jsonl_needs_no_option(run: Callable[..., Result]) -> None:
    content = b"\n" + records(3)
    assert run(*GREEDY, stdin=content).stdout == run("--input", "-", *GREEDY, stdin=content).stdout


def test_json_has_results_and_figures(run: Callable[..., Result]) -> None:
    document = json.loads(run("-p", "ab", "-p", "c", *GREEDY, "--schedule", "2x", "--json").stdout)
    assert [result["id"] for result in document["results"]] == [0, 1]
    depths = [result["layers_per_token"] for result in document["results"]]
    assert depths[0][0] == 6
    assert document["realised_depth"] == pytest.approx(sum(map(sum, depths)) / 10 - 6 * 2 / 10)
    assert document["horizon"] == 6


def test_stream_prints_the_same_text(run: Callable[..., Result]) -> None:
    whole = run("-p", "ab", *GREEDY)
    assert run("-p", "ab", *GREEDY, "--stream").stdout == whole.stdout
    deltas = parsed(run("-p", "ab", *GREEDY, "--stream", "--json").stdout)
    assert "".join(delta["text"] for delta in deltas) + "\n" == whole.stdout
    assert [delta["finish_reason"] for delta in deltas] == [None] * 5 + ["length"]


def test_quiet_prints_nothing_on_stderr(run: Callable[..., Result]) -> None:
    assert run("-p", "ab", *GREEDY, "-q").stderr == ""


def test_an_untuned_depth_causes_one_warning(
    run: Callable[..., Result],
) -> None:
    reduced = ("--schedule", "2x", *GREEDY)
    for arguments in (("-p", "ab", "-p", "c"), ("-p", "ab", "--stream")):
        stderr_text = run(*arguments, *reduced).stderr
        assert stderr_text.count("nothing says that the model was tuned") == 1
    assert run("-p", "ab", *reduced, "-q").stderr == ""
    assert "tuned" not in run("-p", "ab", *GREEDY).stderr


def test_lines_from_stdin_go_to_stdout(run: Callable[..., Result]) -> None:
    result = run("--input", "-", *GREEDY, stdin=records(5))
    assert result.exit_code == 0
    lines = parsed(result.stdout)
    assert [line["id"] for line in lines] == list(range(5))
    keys = ["id", "text", "token_ids", "finish_reason", "layers_per_token", "layer_ranges"]
    assert list(lines[0]) == keys


def test_a_bad_line_gives_an_error_line_and_exit_code_1(run: Callable[..., Result]) -> None:
    result = run("--input", "-", *GREEDY, stdin=records(1) + b"{\n" + b'{"id": 9, "prompt": "a"}')
    assert result.exit_code == 1
    assert ["error" in line for line in parsed(result.stdout)] == [False, True, False]
    assert "1 of 3 lines could not be run" in result.stderr


@pytest.mark.parametrize("make", [Path.symlink_to, Path.hardlink_to])
def test_the_input_is_never_the_output(
    run: Callable[..., Result], tmp_path: Path, make: Callable[[Path, Path], None]
) -> None:
    source, link = tmp_path / "in.jsonl", tmp_path / "link.jsonl"
    source.write_bytes(records(2))
    make(link, source)
    for output in (source, link):
        for how in ("--force", "--resume"):
            refused = run("--input", str(source), "--output", str(output), how)
            assert (refused.exit_code, "is also the input" in refused.stderr) == (2, True)
    assert source.read_bytes() == records(2)


def test_resuming_a_complete_file_opens_no_bundle(
    run: Callable[..., Result], tmp_path: Path
) -> None:
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_bytes(records(1))
    output.write_bytes(b'{"id": 0}\n')
    result = run("--input", str(source), "--output", str(output), "--resume", "--kv-memory", "1")
    assert result.exit_code == 0
    assert output.read_bytes() == b'{"id": 0}\n'


def test_empty_input_gives_an_empty_file(run: Callable[..., Result], tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"
    result = run("--input", "-", "--output", str(output), stdin=b"\n")
    assert result.exit_code == 0
    assert output.read_bytes() == b""


def test_json_with_an_output_file_prints_its_figures(
    run: Callable[..., Result], tmp_path: Path
) -> None:
    output = tmp_path / "out.jsonl"
    result = run("--input", "-", "--output", str(output), "--json", *GREEDY, stdin=records(3))
    figures = json.loads(result.stdout)
    assert (figures["completions"], figures["tokens"], figures["errors"]) == (3, 18, 0)
    again = ("--input", "-", "--output", str(output), "--resume", "--json", *GREEDY)
    nothing = json.loads(run(*again, stdin=records(3)).stdout)
    assert (nothing["completions"], nothing["tokens"], nothing["errors"]) == (0, 0, 0)


@pytest.mark.parametrize("option", ["--stream", "--chat", "--json"])
def test_options_for_prompts_are_refused_with_piped_jsonl(
    run: Callable[..., Result], option: str
) -> None:
    result = run(option, *GREEDY, stdin=records(1))
    assert result.exit_code == 2
    assert "stdin has lines" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ((), "stdin | is empty"),
        (("-",), "stdin | is empty"),
        (("-", "-p", "-"), "give - only once"),
        (("a", "--input", "-"), "give either -p or --input"),
        (("--input", "-", "--output", "missing/out.jsonl"), "missing is not a directory"),
        (("--input", "-", "--output", "-"), "leave --output out"),
        (("--input", "."), "expected a regular file"),
        (("-p", "a", "--output", "x"), "--output needs --input"),
        (("--input", "-", "--resume"), "--resume and --force need --output"),
        (("--input", "-", "--output", "x", "--resume", "--force"), "exclude each other"),
        (("--input", "-", "--stream"), "--stream needs -p"),
        (("--input", "-", "--json"), "--json with --input needs --output"),
        (("-p", "a", "-p", "b", "--stream"), "add --json for more"),
        (("-p", "a", "--temperature", "-1", "--top-p", "2"), "2 problems"),
        (("-p", "a", "--seed", "-1"), "--seed is -1; allowed: an integer from 0 to 2**64 - 1\n"),
        (("-p", "a", "--kv-memory", "much"), "--kv-memory is 'much', not a size"),
        (("-p", "a", "--schedule", "9x"), "does not fit 6 layers"),
        (("-p", "a", "--max-tokens", "99"), "64 positions"),
        (("--input", "missing.jsonl"), "missing.jsonl can't be read (No such file"),
    ],
)
def test_invalid_arguments_exit_with_2_and_the_reason(
    arguments: tuple[str, ...], problem: str, run: Callable[..., Result]
) -> None:
    result = run(*arguments, stdin=b"")
    assert result.exit_code == 2
    assert problem in result.stderr
    assert result.stdout == ""


@pytest.fixture
def writing(bundle: Path, tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Start the command with more output than a pipe holds, so that it blocks."""
    source = tmp_path / "in.jsonl"
    source.write_bytes(records(3000))
    arguments = ["generate", str(bundle), "--input", str(source), "--threads", "1", *GREEDY]
    with subprocess.Popen(
        [*command_line.SKIPDEC, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        yield process
        process.kill()


def test_signals_keep_whole_lines_and_set_the_exit_code(
    writing: subprocess.Popen[bytes],
) -> None:
    assert writing.stdout is not None
    assert writing.stderr is not None
    first = writing.stdout.readline()
    writing.send_signal(signal.SIGTERM)  # handled like SIGINT, which background jobs may ignore
    lines = parsed((first + writing.stdout.read()).decode())
    assert b"Traceback" not in writing.stderr.read()
    assert writing.wait() == 128 + signal.SIGTERM
    assert [line["id"] for line in lines] == sorted(line["id"] for line in lines)
    assert 0 < len(lines) < 3000


def test_a_closed_pipe_ends_the_command_without_a_traceback(
    writing: subprocess.Popen[bytes],
) -> None:
    assert writing.stdout is not None
    assert writing.stderr is not None
    writing.stdout.readline()
    writing.stdout.close()
    assert b"Traceback" not in writing.stderr.read()
    assert writing.wait() == 1


def test_a_device_is_chosen_by_name_and_takes_no_threads(run: Callable[..., Result]) -> None:
    arguments = ("-p", "a", "--max-tokens", "3", "--temperature", "0", "-q")
    on_cpu, on_device = run(*arguments), run(*arguments, "--device", "rehearsal")
    assert on_device.exit_code == 0, on_device.output
    assert on_device.stdout == on_cpu.stdout
    refused = run(*arguments, "--device", "rehearsal", "--threads", "2")
    assert refused.exit_code == 2
    assert "--threads | is 2, but engines run on rehearsal" in refused.stderr
    unknown = run(*arguments, "--device", "tpu")
    assert unknown.exit_code == 2
    assert "allowed: cpu, cuda, cuda:INDEX, rehearsal" in unknown.stderr
