"""``--draft`` adds figures to the same texts, and is refused where texts could differ."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import command_line
import pytest
from click.testing import Result

from skipdec.engines.kernels.library import find_library

pytestmark = [
    pytest.mark.skipif(find_library() is None, reason="the kernels were not compiled"),
    pytest.mark.usefixtures("own_thread_pools"),
]

IGNORE_EOS = command_line.config(params={"ignore_eos": True})
GREEDY = ("--temperature", "0", "--max-tokens", "30", *IGNORE_EOS, "--threads", "1")
DRAFT = ("--draft", "lookup,adapt=no")
LINES = b"".join(b'{"prompt": "%s", "n": %d}\n' % (text, n) for text, n in ((b"aa", 1), (b"b", 2)))


@pytest.fixture(scope="module")
def bundle(int8_bundle: Path) -> Path:
    return int8_bundle


def run(command: str, bundle: Path, *arguments: str, stdin: bytes | None = None) -> Result:
    return command_line.run(command, bundle, *arguments, input=stdin)


def documents(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_drafts_add_only_their_figures_to_results(bundle: Path) -> None:
    plain = json.loads(run("generate", bundle, "-p", "aa", *GREEDY, "--json").stdout)
    drafted = json.loads(run("generate", bundle, "-p", "aa", *GREEDY, *DRAFT, "--json").stdout)
    (result,) = drafted["results"]
    drafts = result.pop("drafts")
    assert [result] == plain["results"]
    assert "drafts" not in plain
    assert drafts["passes"] + drafts["accepted"] == 29
    figures = drafted["drafts"]
    assert figures["draft"] == "lookup,adapt=no"
    assert {name: figures[name] for name in drafts} == drafts
    assert figures["tokens_per_pass"] == pytest.approx(29 / drafts["passes"])
    assert figures["acceptance"] == pytest.approx(drafts["accepted"] / drafts["drafted"])


def test_streamed_lines_mark_the_drafted_tokens(bundle: Path) -> None:
    arguments = ("-p", "aa", *GREEDY, "--stream", "--json")
    plain = documents(run("generate", bundle, *arguments).stdout)
    lines = documents(run("generate", bundle, *arguments, *DRAFT).stdout)
    marks = [line.pop("drafted") for line in lines]
    assert lines == plain
    assert len(marks) == 30
    assert set(marks) == {True, False}


def test_jsonl_reports_the_drafts_of_each_completion(bundle: Path, tmp_path: Path) -> None:
    arguments = ("--input", "-", *GREEDY, "--temperature", "0.5", "--seed", "3")
    plain = documents(run("generate", bundle, *arguments, stdin=LINES).stdout)
    output = tmp_path / "out.jsonl"
    written = ("--output", str(output), "--json")
    figures = json.loads(run("generate", bundle, *arguments, *DRAFT, *written, stdin=LINES).stdout)
    lines = documents(output.read_text())
    drafts = [one.pop("drafts") for line in lines for one in line.get("outputs", [line])]
    assert lines == plain
    assert len(drafts) == 3
    for name in ("passes", "drafted", "accepted"):
        assert figures["drafts"][name] == sum(one[name] for one in drafts)


def test_inspect_says_whether_drafts_are_exact(bundle: Path, exported: Callable[..., Path]) -> None:
    assert "drafts: exact (--draft changes no text)\n" in run("inspect", bundle).stdout
    plain = exported("pre_norm", quantize="int8", kernels="onnxruntime")
    assert "drafts: needs skipdec's kernels" in run("inspect", plain).stdout
    assert json.loads(run("inspect", plain, "--json").stdout)["drafts"]["exact"] is False
    refused = run("generate", plain, "-p", "a", *DRAFT)
    assert refused.exit_code == 2
    assert "--draft | needs skipdec's kernels" in " ".join(refused.stderr.split())
