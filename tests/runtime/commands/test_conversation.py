"""``skipdec chat`` holds a conversation: each answer depends on all earlier messages."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from command_line import run
from text_bundles import STRUCTURE

from skipdec import Generator, SamplingParams

GREEDY = ("--temperature", "0", "--max-tokens", "3")


@pytest.fixture(scope="module")
def bundle(chat_bundle: Path) -> Path:
    return chat_bundle


@pytest.fixture
def talk(bundle: Path, own_thread_pools: None) -> Callable[..., Result]:
    def invoke(lines: str, *arguments: str) -> Result:
        command = ["chat", str(bundle), *arguments]
        return run(*command, input=lines, prog_name="skipdec")

    return invoke


def answers(bundle: Path, *messages: str, schedule: str | None = None) -> list[str]:
    """Return each answer of a conversation, computed from the whole chat up to it."""
    params = SamplingParams(temperature=0, max_tokens=3)
    chat: list[dict[str, Any]] = [{"role": "system", "content": "B"}]
    texts = []
    with Generator.open(bundle, threads=1) as generator:
        for message in messages:
            chat.append({"role": "user", "content": message})
            (output,) = generator.chat(chat, params, schedule=schedule)
            texts.append(output.outputs[0].text)
            chat.append({"role": "assistant", "content": texts[-1]})
    return texts


def test_each_answer_follows_from_the_whole_conversation(
    talk: Callable[..., Result], bundle: Path
) -> None:
    first, second = answers(bundle, "H", "W")
    (reduced,) = answers(bundle, "H", schedule="2x")
    lines = "H\n\nW\n/reset\n/schedule 2x\nH\n/draft off\n/exit\nunread\n"
    done = talk(lines, "--system", "B", *GREEDY)
    assert (done.exit_code, done.stdout) == (0, f"{first}\n{second}\n{reduced}\n")
    assert done.stderr.count(" layers per token") == 3
    assert "schedule linear:" in done.stderr
    assert "but nothing says that the model was tuned for that" in done.stderr


def test_the_conversation_goes_on_after_an_invalid_command(
    talk: Callable[..., Result], bundle: Path
) -> None:
    done = talk(f"/resett\n/schedule 99x\n/draft nothing\n{'a' * 99}\nHi\n", *GREEDY)
    assert done.exit_code == 0
    assert "/resett is unknown; did you mean '/reset'? /help lists all commands" in done.stderr
    assert "error: preset 99x | does not fit 6 layers" in done.stderr
    assert "error: draft" in done.stderr
    assert "/reset begins a new conversation" in done.stderr
    assert len(done.stdout.removesuffix("\n").split("\n")) == 1


def test_a_bundle_without_a_chat_template_is_refused(
    exported: Callable[..., Path], own_thread_pools: None
) -> None:
    done = run("chat", exported(STRUCTURE), input="Hi\n")
    assert done.exit_code == 2
    assert "has no chat template; continue a text with skipdec generate" in done.stderr
