"""``skipdec generate --chat``, lines with messages, and `Generator.chat` render alike."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import command_line
import pytest
from attack.processes import child_processes
from click.testing import Result
from text_bundles import STRUCTURE, export_chat_bundle

from skipdec import Generator, SamplingParams, UsageError

IGNORE_EOS = command_line.config(params={"ignore_eos": True})
GREEDY = ("--temperature", "0", "--max-tokens", "6", *IGNORE_EOS)
PARAMS = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hi"},
]


@pytest.fixture(scope="module")
def bundle(chat_bundle: Path) -> Path:
    return chat_bundle


def test_command_and_jsonl_answer_as_generator_chat(
    run: Callable[..., Result], bundle: Path
) -> None:
    with Generator.open(bundle, threads=1) as generator:
        (output,) = generator.chat(MESSAGES, PARAMS)
        (streamed,) = generator.chat(iter(MESSAGES), PARAMS)
        both = generator.chat([MESSAGES, MESSAGES[1:]], PARAMS)
    assert output.prompt == streamed.prompt == "<s>system: Be brief.</s>user: Hi</s>assistant:"
    assert [one.prompt for one in both] == [output.prompt, "<s>user: Hi</s>assistant:"]
    done = run("--chat", "--system", "Be brief.", "-p", "Hi", "--json", *GREEDY)
    (result,) = json.loads(done.stdout)["results"]
    assert result["token_ids"] == list(output.outputs[0].token_ids)
    lines = json.dumps({"messages": MESSAGES}).encode()
    line = json.loads(run("--input", "-", *GREEDY, stdin=lines).stdout)
    assert line["token_ids"] == result["token_ids"]


@pytest.mark.parametrize("messages", [5, None, "Hi"])
def test_a_value_that_is_not_a_chat_is_refused(bundle: Path, messages: object) -> None:
    with Generator.open(bundle, threads=1) as generator, pytest.raises(UsageError):
        generator.chat(messages, PARAMS)


def test_special_tokens_of_a_message_may_be_allowed(bundle: Path) -> None:
    spelled = [{"role": "user", "content": "</s>"}]
    others = child_processes()
    with Generator.open(bundle, threads=1) as generator:
        (escaped,) = generator.chat(spelled, PARAMS)
        (allowed,) = generator.chat(spelled, PARAMS, special_tokens="allow")
        assert child_processes() - others  # the renderers
    assert not child_processes() - others
    assert escaped.prompt == allowed.prompt
    assert len(escaped.prompt_token_ids) - len(allowed.prompt_token_ids) == len("</s>") - 1


def test_options_jsonl_and_python_set_template_variables(
    checkpoint: Callable[[str], Path], tmp_path: Path, own_thread_pools: None
) -> None:
    template = "{{ messages[-1].content }}{{ ' thinks' if thinking }} {{ style }}"
    bundle = export_chat_bundle(checkpoint(STRUCTURE), tmp_path, template=template)
    given = {"thinking": True, "style": "short"}
    with Generator.open(bundle, threads=1) as generator:
        (output,) = generator.chat(MESSAGES, PARAMS, chat_template_kwargs=given)
        begun = [*MESSAGES, {"role": "assistant", "content": "So"}]
        (continued,) = generator.chat(begun, PARAMS, continue_final_message=True)
    assert (output.prompt, continued.prompt) == ("Hi thinks short", "So")

    def run(*arguments: str, stdin: bytes | None = None) -> Any:  # noqa: ANN401
        command = ["generate", str(bundle), *GREEDY, *arguments]
        return json.loads(command_line.run(*command, input=stdin).stdout)

    variables = {"template_variables": ["thinking=true", "style=short"]}
    options = command_line.config(**variables, params={"ignore_eos": True})
    (result,) = run("--chat", "-p", "Hi", "--json", *options)["results"]
    assert result["token_ids"] == list(output.outputs[0].token_ids)
    line = json.dumps({"messages": MESSAGES, "chat_template_kwargs": given}).encode()
    assert run("--input", "-", stdin=line)["token_ids"] == result["token_ids"]
    line = json.dumps({"messages": begun, "continue_final_message": True}).encode()
    assert run("--input", "-", stdin=line)["token_ids"] == list(continued.outputs[0].token_ids)


def variables(*texts: str) -> tuple[str, str]:
    return command_line.config(template_variables=texts)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ((*variables("a=1"), "-p", "y"), "yaml) needs --chat"),
        ((*variables("a"), "--chat", "-p", "y"), "'a' is not NAME=VALUE"),
        ((*variables("a=1"), "--chat", "-p", "y"), "'a', which the chat template"),
        (("--system", "x", "-p", "y"), "--system needs --chat"),
        (("--chat", "--input", "-"), "messages instead of a prompt"),
    ],
)
def test_contradictory_options_are_refused(
    run: Callable[..., Result], arguments: tuple[str, ...], problem: str
) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert problem in result.stderr


def test_a_bundle_without_a_template_refuses_chats_with_advice(
    exported: Callable[..., Path],
) -> None:
    with (
        Generator.open(exported(STRUCTURE), threads=1) as generator,
        pytest.raises(UsageError, match="need a chat template, and the bundle has none: send a"),
    ):
        generator.chat(MESSAGES, PARAMS)


def test_a_line_with_prompt_and_messages_is_refused(run: Callable[..., Result]) -> None:
    lines = json.dumps({"messages": MESSAGES, "prompt": "x"}).encode()
    result = run("--input", "-", *GREEDY, stdin=lines)
    assert "prompt and messages are given; give one" in json.loads(result.stdout)["error"]
