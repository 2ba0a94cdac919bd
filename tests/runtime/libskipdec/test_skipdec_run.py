"""skipdec-run behaves like ``skipdec generate``: texts, messages and exit codes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import command_line
import numpy as np
import onnx
import pytest
from mutations import copy_bundle, edit_graph
from programs import built_app
from runtimes import LIBRARY
from text_bundles import STRUCTURE, export_chat_bundle

from skipdec import Generator, SamplingParams
from skipdec.runtime.schedule.text import document_text, parse_schedule

ENVIRONMENT = os.environ | {"SKIPDEC_ONNXRUNTIME": str(LIBRARY), "OMP_NUM_THREADS": "1"}
LONG = ("--max-tokens", "0", "--ignore-eos", "--stream", "--json", "-q") + ("-p", "a") * 2000


def run(
    *arguments: object, stdin: str | None = None, code: int = 0
) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [built_app("skipdec-run"), *map(str, arguments), "--threads", "1"],
        input=stdin,
        stdin=subprocess.DEVNULL if stdin is None else None,
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
        timeout=60,
        check=False,
    )
    assert done.returncode == code, done.stderr
    return done


def printed_by_python(*arguments: object) -> str:
    """Return the output of ``skipdec generate --json``."""
    done = command_line.run("generate", *arguments, "--json", "--threads", "1")
    assert done.exit_code == 0, done.output
    return done.stdout


def lines_of(output: str) -> list[str]:
    """Split at newlines only: a text may contain other line ends of ``splitlines``."""
    return output.removesuffix("\n").split("\n")


def comparable(document: dict[str, Any]) -> dict[str, Any]:
    """Remove fields that differ between runtimes or runs; round floats to four digits."""
    left_out = ("seconds", "tokens_per_second", "kernels")
    kept = {name: value for name, value in document.items() if name not in left_out}
    rounded = json.loads(json.dumps(kept), parse_float=lambda text: round(float(text), 4))
    return dict(rounded)


def test_a_rendered_chat_gives_the_same_tokens_as_in_python(
    checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    template = "{{ '<s>user: ' if messages[0].content == 'Hi' }}{{ messages[0].content }}</s>"
    bundle = export_chat_bundle(checkpoint(STRUCTURE), tmp_path, template=template)
    params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
    with Generator.open(bundle, threads=1) as generator:
        chats = [[{"role": "user", "content": text}] for text in ("Hi", "a")]
        outputs = generator.chat(chats, params)
    assert [output.prompt for output in outputs] == ["<s>user: Hi</s>", "a</s>"]
    greedy = ("--temperature", "0", "--max-tokens", "6", "--ignore-eos", "--json")
    for output in outputs:
        made = json.loads(run(bundle, output.prompt, "--rendered-chat", *greedy).stdout)
        assert made["results"][0]["token_ids"] == list(output.outputs[0].token_ids)


@pytest.mark.usefixtures("own_thread_pools")
@pytest.mark.parametrize(
    ("arguments", "own", "params"),
    [
        (("-p", "Hello", "-p", "two: \n", "--schedule", "2x", "--temperature", "0"), (), {}),
        (
            ("ab", "--n", "10", "--seed", str(2**64 - 1), "--top-p", "0.9"),
            ("--logprobs", "2"),
            {"logprobs": 2},
        ),
        (
            ("x", "--stop", "a", "--max-tokens", "0", "--seed", "4"),
            ("--stop-token-id", "70", "--include-stop-str-in-output", "--frequency-penalty", "0.5"),
            {
                "stop_token_ids": [70],
                "include_stop_str_in_output": True,
                "frequency_penalty": 0.5,
            },
        ),
    ],
    ids=["greedy", "sampled", "stopped"],
)
def test_json_output_equals_that_of_skipdec_generate(
    text_bundle: Path, arguments: tuple[str, ...], own: tuple[str, ...], params: dict[str, Any]
) -> None:
    document = json.loads(run(text_bundle, *arguments, *own, "--json").stdout)
    expected = printed_by_python(text_bundle, *arguments, *command_line.config(params=params))
    assert comparable(document) == comparable(json.loads(expected))


@pytest.mark.usefixtures("own_thread_pools")
def test_json_output_has_the_drafts_of_skipdec_generate(text_bundle: Path) -> None:
    arguments = (text_bundle, "-p", "Hello", "--temperature", "0", "--max-tokens", "40")
    drafts = ("--draft", " OWN+lookup, adapt=no,tokens=4,exact=no")
    done = run(*arguments, "--json", *drafts)
    expected = json.loads(printed_by_python(*arguments, *drafts))
    assert comparable(json.loads(done.stdout)) == comparable(expected)
    figures = expected["drafts"]
    assert figures["draft"] == "own+lookup,tokens=4,adapt=no,exact=no"
    line = f"draft {figures['draft']}: {figures['tokens_per_pass']:.2f} tokens per pass"
    assert line in done.stderr


@pytest.mark.usefixtures("own_thread_pools")
def test_automatic_drafts_are_named_as_in_python(text_bundle: Path) -> None:
    arguments = (text_bundle, "-p", "Hello", "--max-tokens", "4", "--draft", "auto")
    document = json.loads(run(*arguments, "--json").stdout)
    expected = json.loads(printed_by_python(*arguments))
    assert document["drafts"]["draft"] == expected["drafts"]["draft"] == "own"


@pytest.mark.usefixtures("own_thread_pools")
def test_a_stream_marks_drafted_tokens_as_skipdec_generate_does(text_bundle: Path) -> None:
    arguments = (text_bundle, "-p", "Hello", "--temperature", "0", "--max-tokens", "40", "--stream")
    draft = ("--draft", "own,adapt=no,exact=no")
    lines = [json.loads(line) for line in lines_of(run(*arguments, "--json", *draft).stdout)]
    expected = [json.loads(line) for line in lines_of(printed_by_python(*arguments, *draft))]
    assert lines == expected
    assert any(line["drafted"] for line in lines)
    assert "drafted" not in lines_of(run(*arguments, "--json").stdout)[0]


def test_a_stream_has_the_same_text_as_whole_output(text_bundle: Path) -> None:
    arguments = (text_bundle, "-p", "Hello", "--seed", "1", "--max-tokens", "30")
    streamed = run(*arguments, "--stream", "-q")
    whole = run(*arguments)
    lines = map(json.loads, lines_of(run(*arguments, "--stream", "--json").stdout))
    assert streamed.stdout == whole.stdout == "".join(line["text"] for line in lines) + "\n"
    assert streamed.stderr == ""
    assert "30 tokens in " in whole.stderr


def test_the_summary_names_the_horizon_of_schedules_that_have_one(text_bundle: Path) -> None:
    arguments = (text_bundle, "-p", "Hello", "--temperature", "0", "--max-tokens", "8")
    assert run(*arguments, "--schedule", "full").stderr.startswith("schedule full, realised")
    assert ", horizon 4, realised" in run(*arguments, "--schedule", "2x").stderr


def test_the_summary_counts_drafted_tokens_if_drafts_are_on(text_bundle: Path) -> None:
    arguments = (text_bundle, "Hello", "--temperature", "0", "--max-tokens", "40", "--draft")
    assert "draft" not in run(*arguments, " OFF").stderr
    assert " drafted tokens right" in run(*arguments, "own,adapt=no,exact=no").stderr


@pytest.mark.usefixtures("own_thread_pools")
@pytest.mark.parametrize("prompts", [("-p", "a"), ("-p", "a", "-p", "b")])
def test_headings_equal_those_of_skipdec_generate(
    text_bundle: Path, prompts: tuple[str, ...]
) -> None:
    arguments = (text_bundle, *prompts, "--n", "2", "--seed", "1", "--max-tokens", "2")
    done = command_line.run("generate", *arguments, "--threads", "1")
    assert run(*arguments).stdout == done.stdout


def test_a_size_may_have_a_space_before_its_unit(text_bundle: Path) -> None:
    run(text_bundle, "a", "--kv-memory", "1 GiB")


def test_an_unreadable_stdin_is_reported(text_bundle: Path) -> None:
    command = [built_app("skipdec-run"), str(text_bundle), "-"]
    folder = os.open("/", os.O_RDONLY)
    done = subprocess.run(command, stdin=folder, stderr=subprocess.PIPE, env=ENVIRONMENT)
    os.close(folder)
    assert done.returncode == 2
    assert done.stderr == b"error: stdin | can't be read (Is a directory); give a prompt\n"


@pytest.mark.parametrize("arguments", [(), ("-",), ("-p", "-")])
def test_piped_text_is_the_prompt_without_its_last_line_feed(
    text_bundle: Path, arguments: tuple[str, ...]
) -> None:
    greedy = ("--temperature", "0")
    piped = run(text_bundle, *arguments, *greedy, stdin="a\nb\n").stdout
    assert piped == run(text_bundle, "a\nb", *greedy).stdout


def test_token_ids_need_no_tokenizer(exported: Callable[..., Path]) -> None:
    bundle = exported("untied", kernels="auto", quantize="int8")
    arguments = ("--token-ids", "5,6,7", "--temperature", "0", "--max-tokens", "4")
    document = json.loads(run(bundle, *arguments, "--json").stdout)
    printed = run(bundle, *arguments).stdout.split()
    assert [int(token_id) for token_id in printed] == document["results"][0]["token_ids"]
    assert "tokenizer" in run(bundle, "text", code=2).stderr


def test_an_early_exit_model_warns_if_other_than_top_layers_are_skipped(
    exported: Callable[..., Path], tmp_path: Path
) -> None:
    bundle = exported("no_bias", early_exit=True)
    plan = parse_schedule("linear:max=4,min=2,horizon=4,placement=bottom", num_layers=6)
    path = tmp_path / "bottom.json"
    path.write_text(document_text(plan))
    arguments = ("--token-ids", "5,6,7", "--max-tokens", "4", "--schedule")
    assert "add placement=bottom" in run(bundle, *arguments, "2x").stderr
    assert "warning" not in run(bundle, *arguments, path).stderr


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ((), 2, "BUNDLE is missing"),
        (("nowhere", "a"), 1, "nowhere"),
        (("b", "a", "c"), 2, "'c' is one argument too many"),
        (("b", "a", "--temp", "1"), 2, "--temp is unknown; allowed: --prompt, --token-ids, "),
        (("b", "a", "--kv-memory", "3xx"), 2, "--kv-memory is '3xx'; allowed: e.g. 512MiB"),
        (("b", "a", "--kv-memory", "0.5"), 2, "--kv-memory is '0.5'; allowed: e.g. 512MiB"),
        (("b", "a", "--top-k", "1.5"), 2, "--top-k is '1.5'; allowed: an integer"),
        (("b", "a", "--top-k", str(-(2**63))), 2, "allowed: an integer above -2**63"),
        (("b", "a", "--top-p", "nan"), 2, "--top-p is 'nan'; allowed: a finite number"),
        (("b", "a", "--logprobs", "-5"), 2, "--logprobs is '-5'; allowed: an integer from 0"),
        (("b", "a", "--schedule", " "), 2, "--schedule is ' '; allowed: a schedule, e.g. 2x"),
        (("b", "a", "--draft", ""), 2, "--draft is ''; allowed: drafts, e.g. own, or off"),
        (("b", "a", "--seed", "-1"), 2, "--seed is '-1'; allowed: an integer from 0"),
        (("b", "a", "--verify=all"), 2, "--verify is 'all'; allowed: full or graphs"),
        (("b", "a", "--stream=yes"), 2, "--stream has a value"),
        (("b", "a", "--n"), 2, "--n needs a value, N"),
        (("b", "-", "-p", "-"), 2, "give - only once"),
        (("b", "a", "--n", "2", "--stream"), 2, "--stream shows one completion as text"),
        (("b",), 2, "stdin | is empty"),
        (("BUNDLE", "a", "--top-p", "7", "--n", "0"), 2, "SamplingParams | 2 problems:"),
        (("BUNDLE", "a", "--schedule", "7y"), 2, "7y"),
        (("BUNDLE", "a", "--max-tokens", "1000"), 2, "64 positions"),
        (("BUNDLE", "a", "--onnxruntime", "/nowhere.so"), 3, "/nowhere.so"),
    ],
)
def test_errors_are_printed_and_set_the_exit_code(
    text_bundle: Path, arguments: tuple[str, ...], code: int, words: str
) -> None:
    given = [text_bundle if argument == "BUNDLE" else argument for argument in arguments]
    command = [built_app("skipdec-run"), *map(str, given)]
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=ENVIRONMENT
    )
    assert done.returncode == code, done.stderr
    assert done.stderr.startswith("error: ")
    assert words in done.stderr
    assert done.stdout == ""


def test_help_names_every_option() -> None:
    text = run("--help").stdout
    unknown = run("--no-such-option", code=2).stderr
    allowed = unknown.partition("--no-such-option is unknown; allowed: ")[2].splitlines()[0]
    assert all(f"  {name}" in text for name in allowed.split(", "))


def test_each_schedule_that_the_help_offers_is_accepted(text_bundle: Path) -> None:
    (line,) = (line for line in run("--help").stdout.splitlines() if "--schedule" in line)
    offered, _, _ = line.partition("--schedule TEXT")[2].partition(" or JSON")
    for text in offered.strip(" ,").split(", "):
        run(text_bundle, "a", "--schedule", text)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_end_completions_and_keep_partial_output(
    text_bundle: Path, number: signal.Signals
) -> None:
    command = [built_app("skipdec-run"), str(text_bundle), *LONG]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        first = process.stdout.readline()
        process.send_signal(number)
        output, words = process.stdout.read(), process.stderr.read()
    deltas = [json.loads(line) for line in (first, *lines_of(output))]
    assert process.returncode == 128 + number
    assert words == "interrupted\n"
    assert "abort" in {delta["finish_reason"] for delta in deltas}


def test_a_closed_pipe_ends_the_program(text_bundle: Path) -> None:
    command = [built_app("skipdec-run"), str(text_bundle), *LONG]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(timeout=60) == 1
        assert process.stderr.read() == ""


def add_failing_reshape(graph: onnx.GraphProto) -> None:
    """Make a layer load but fail at each run: its hidden states never have 1,009 rows."""
    output = graph.output[0]
    shape = np.array([1009, 1, output.type.tensor_type.shape.dim[2].dim_value], np.int64)
    for node in graph.node:
        for index, name in enumerate(node.output):
            if name == output.name:
                node.output[index] = "before"
    graph.initializer.append(onnx.numpy_helper.from_array(shape, "never"))
    graph.node.append(onnx.helper.make_node("Reshape", ["before", "never"], [output.name]))


@pytest.mark.parametrize("stream", [(), ("--stream", "--json")], ids=["whole", "stream"])
def test_a_permanently_failing_engine_ends_the_program_with_its_error(
    text_bundle: Path, tmp_path: Path, stream: tuple[str, ...]
) -> None:
    broken = copy_bundle(text_bundle, tmp_path)
    edit_graph(broken, "layer_001", add_failing_reshape)
    done = run(broken, *stream, "--max-batch-size", "1", *("-p", "a") * 6, code=1)
    assert "engine layer_001 | ONNX Runtime failed to run it" in done.stderr
    ends = [json.loads(line)["finish_reason"] for line in done.stdout.splitlines()]
    assert ends == (["error"] * 6 if stream else [])


@pytest.mark.parametrize("arguments", [("BUNDLE", "a", "-q"), ("--help",), ("--version",)], ids=str)
def test_a_full_disk_is_reported(text_bundle: Path, arguments: tuple[str, ...]) -> None:
    given = [str(text_bundle) if argument == "BUNDLE" else argument for argument in arguments]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [built_app("skipdec-run"), *given],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env=ENVIRONMENT,
        )
    assert done.returncode == 1
    assert done.stderr == "error: stdout | can't be written (No space left on device)\n"
